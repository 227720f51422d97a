"""How samples on which two candidates differ are shown: by modality, of bounded size, with text that stays text."""

from __future__ import annotations

import base64
import io
import math
import struct
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.document.bench import ShownSamples
from prepbench.errors import SettingsError
from prepbench.measure.modality import modality_of
from prepbench.views.sample_parts import ROOM, shown_samples, wav_address
from prepbench.views.samples import samples_html

WAVE = torch.sin(torch.linspace(0, 900, 16_000)) * 0.5


def shown(first: Any, second: Any, data: list[Any], **options: Any) -> ShownSamples:
    return shown_samples(pb.compare({"first": first, "second": second}, data, rounds=0).worst(3, **options))


@pytest.mark.parametrize(
    ("values", "name", "modality"),
    [
        (torch.rand(3, 8, 8), "x", "image"),
        (torch.rand(8, 8, 1), "x", "image"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "x", "image"),
        (torch.rand(5, 8, 8), "x", "numbers"),
        (WAVE, "x", "audio"),
        (WAVE[None], "x", "audio"),
        (WAVE * 3, "x", "numbers"),
        (WAVE.abs(), "x", "numbers"),
        (WAVE[:700], "x", "numbers"),
        (torch.arange(6), "ids", "text"),
        (torch.ones(6, dtype=torch.long), "attention_mask", "numbers"),
        (torch.rand(6), "x", "numbers"),
    ],
)
def test_the_modality_is_read_off_shape_type_and_values(values: torch.Tensor, name: str, modality: str) -> None:
    assert modality_of(values, name) == modality


def test_images_and_outputs_that_are_images_are_shown_beside_each_other() -> None:
    found = shown(lambda x: x * 0.9, lambda x: x * 0.9 + 0.2 * (x > 0.5), [torch.rand(4, 3, 40, 40)])
    sample = found.samples[0]
    for part in (*sample.inputs, *sample.first, *sample.second):
        assert part.modality == "image"
        assert part.picture.startswith("data:image/png;base64,")
        assert (part.width, part.height) == (40, 40)
    assert sample.first[0].picture != sample.second[0].picture
    assert sample.place == f"batch 0, row {sample.place[-1]}"
    assert "dB" in sample.distance


def test_sounds_can_be_heard_where_they_differ_most_and_are_drawn() -> None:
    def clicks(x: torch.Tensor) -> torch.Tensor:
        changed = x.clone()
        changed[:, 8000:8010] = 0.9
        return changed

    part = shown(lambda x: x * 1.0, clicks, [WAVE[None], WAVE[None] * 0.5]).samples[0].second[0]
    assert part.modality == "audio"
    file = base64.b64decode(part.sound.removeprefix("data:audio/wav;base64,"))
    assert file[:4] == b"RIFF"
    assert struct.unpack("<I", file[4:8])[0] == len(file) - 8
    assert max(part.wave) > 0.85
    assert min(part.wave) < -0.2
    whole, heard = 16_000 / 16_000, part.said.partition("heard: ")[2]
    if heard:
        begin, end = (float(word) for word in heard.removesuffix(" s").split(" to "))
        assert begin <= 0.5 <= end <= whole


def test_a_sound_survives_its_encoding() -> None:
    audioop = pytest.importorskip("audioop", reason="the standard library lost it in 3.13")
    file = base64.b64decode(wav_address(WAVE, 8_000).partition(",")[2])
    data = io.BytesIO(file[file.index(b"data") + 8 :]).read()[: len(WAVE)]
    wide = torch.frombuffer(bytearray(audioop.ulaw2lin(data, 2)), dtype=torch.int16).double() / 32767
    noise = (wide - WAVE).square().mean()
    assert 10 * math.log10(float(WAVE.double().square().mean() / noise)) > 33


def test_much_data_stays_small() -> None:
    found = shown(lambda x: x, lambda x: x + 0.3 * torch.rand_like(x), [torch.rand(3, 3, 300, 300) for _ in range(2)])
    parts = [part for one in found.samples for part in (*one.inputs, *one.first, *one.second)]
    assert 0 < sum(len(part.picture) for part in parts) <= ROOM
    page = samples_html(found, 60_000)
    assert len(page) < 60_000


def test_a_modality_can_be_given() -> None:
    data = [torch.rand(4, 20, 20)]
    args = (lambda x: x * 1.0, lambda x: x * 1.1, data)
    assert shown(*args).samples[0].inputs[0].modality == "numbers"
    assert shown(*args, modality="image").samples[0].inputs[0].modality == "image"
    assert shown(*args, modality={"x": "image"}).samples[0].first[0].modality == "numbers"
    with pytest.raises(SettingsError, match="'video' is unknown"):
        shown(*args, modality="video")


def test_boxes_of_a_detector_lie_on_its_image() -> None:
    def detector(shift: float) -> Any:
        def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
            boxes = torch.tensor([[0.5, 0.5, 0.4, 0.2]]).repeat(len(x), 1, 1) + shift * x.mean()
            logits = torch.tensor([[4.0 - shift, 0.0, 0.0]]).repeat(len(x), 1, 1)
            return {"logits": logits, "pred_boxes": boxes}

        return forward

    found = shown(detector(0.0), detector(0.1), [torch.rand(2, 3, 32, 32)]).samples[0]
    [box] = found.first[0].boxes
    assert (box.left, box.top, box.width, box.height) == pytest.approx((0.3, 0.4, 0.4, 0.2), abs=1e-3)
    assert box.text.startswith("class 0 9")
    assert found.second[0].boxes[0].left > box.left


def test_boxes_in_pixels_lie_on_the_image_as_the_model_saw_it() -> None:
    def detector(shift: float) -> Any:
        def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
            boxes = torch.tensor([[300.0, 150.0, 600.0, 450.0], [0.0, 0.0, 9.0, 9.0]]) + shift
            return {"boxes": boxes, "labels": torch.tensor([7, 1]), "scores": torch.tensor([0.9, 0.1])}

        return forward

    found = shown(detector(0.0), detector(60.0), [torch.rand(1, 3, 600, 1200)]).samples[0]
    part, moved = found.first[0], found.second[0]
    assert (part.width, part.height) == (1200, 600)
    [box], [other] = part.boxes, moved.boxes
    assert (box.left, box.top, box.width, box.height) == pytest.approx((0.25, 0.25, 0.25, 0.5))
    assert (other.left, other.top) == pytest.approx((0.3, 0.35))
    assert box.text == "class 7 90%"
    assert part.said == "1 box of 30% or more"


def test_a_candidate_that_finds_nothing_has_the_image_without_boxes() -> None:
    def detector(score: float) -> Any:
        return lambda x: {"boxes": torch.tensor([[1.0, 1.0, 9.0, 9.0]]) + score, "scores": torch.tensor([score])}

    found = shown(detector(0.8), detector(0.1), [torch.rand(1, 3, 32, 32)]).samples[0]
    assert len(found.first[0].boxes) == 1
    assert found.second[0].boxes == ()
    assert found.second[0].picture == found.first[0].picture
    assert found.second[0].said == "no boxes of 30% or more"


def test_queries_share_a_softmax_or_have_classes_that_stand_for_themselves() -> None:
    def detector(logits: torch.Tensor, shift: float) -> Any:
        boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2]]).expand(len(logits), 4)
        return lambda x: {"logits": (logits - shift)[None], "pred_boxes": boxes[None] + shift / 10}

    nothing = torch.tensor([-2.0, -2.0, 5.0])
    shared = torch.stack([torch.tensor([6.0, 0.0, 1.0]), nothing, nothing])
    apart = torch.tensor([[2.0, -4.0, -4.0], [-4.0, -4.0, -4.5], [-4.0, -4.6, -4.5]])
    for logits, said in ((shared, "class 0 99%"), (apart, "class 0 88%")):
        [box] = (
            shown(detector(logits, 0.0), detector(logits, 0.1), [torch.rand(1, 3, 32, 32)]).samples[0].first[0].boxes
        )
        assert box.text == said


def test_the_first_token_that_deviates_is_marked() -> None:
    words = [f"w{at}" for at in range(400)]

    def decode(tokens: list[int]) -> str:
        return " ".join(words[token] for token in tokens)

    def same(output: torch.Tensor, target: torch.Tensor) -> float:
        return float((output == target).double().mean())

    ids = torch.arange(1, 301)[None]
    other = torch.cat([ids[:, :250], ids[:, 250:] + 1], 1)
    compared = pb.compare({"first": lambda x: x, "second": lambda x: other}, [(ids, ids)], metric=same, rounds=0)
    everything = shown_samples(compared.worst(1, decode=decode))
    found = everything.samples[0]
    first, second = found.first[0], found.second[0]
    assert (first.said, second.said) == ("deviates from token 251 of 300",) * 2
    assert (first.other.strip(), second.other.strip()) == ("w251", "w252")
    assert first.same.startswith("…"), "the mark is near the start of what is shown"
    assert first.same.endswith("w250")
    assert first.same == second.same
    page = samples_html(everything, 50_000)
    assert "<mark> w252</mark>" in page


def test_text_of_a_page_stays_text() -> None:
    data = [torch.tensor([[1, 2, 3]])]
    found = shown(
        lambda x: torch.eye(9)[x],
        lambda x: torch.eye(9)[x.clamp(max=2)],
        data,
        decode=lambda tokens: "<script>" + " ".join(map(str, tokens)),
    )
    page = samples_html(found, 50_000)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
