"""Samples on which two candidates differ, as a page shows them: pictures, texts, sounds and numbers of bounded size."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from prepbench.document.bench import SampleBox, SamplePart, ShownSample, ShownSamples
from prepbench.errors import printable
from prepbench.measure.kept_samples import SampleInput, WorstSample, WorstSamples, distance_text
from prepbench.measure.modality import channels_first, chosen_modality, modality_of
from prepbench.measure.texts import compared_text

ROOM = 90_000
"""Bytes of all pictures and sounds of one comparison: a page and a saved output hold them."""

_PARTS = 4  # inputs and outputs of one sample that are shown
_TEXT = 400  # characters
_BEFORE = 200  # characters before the token that deviates
_STRETCHES = 120  # of a drawn waveform
_RATE = 8_000  # samples in a second of what is heard; a telephone's
_BOXES = 12
_SURE = 0.3  # least score of a box that is drawn
_MOST = 0.5  # share of queries that find nothing


@dataclass(frozen=True)
class _Detail:
    """How much is shown of each part: pixels of a picture's longer side, and seconds of a sound."""

    side: int
    seconds: float


_DETAILS = (_Detail(128, 3.0), _Detail(96, 1.5), _Detail(80, 1.0), _Detail(64, 0.8), _Detail(48, 0.6), _Detail(32, 0.0))


def shown_samples(worst: WorstSamples, room: int = ROOM) -> ShownSamples:
    """Return the samples with as much detail as fits into ``room`` bytes of pictures and sounds."""
    rows = [_one_sample(row) for row in worst.rows]
    for detail in _DETAILS:
        samples = tuple(_sample(worst, row, detail) for row in rows)
        if sum(map(_size, samples)) <= room:
            break
    return ShownSamples(worst.first, worst.candidate, printable(worst.caption), samples)


def _one_sample(row: WorstSample) -> WorstSample:
    """Return the row without a batch dimension of one sample: outputs such as boxes may have none of their own."""
    if row.row is not None:
        return row
    return replace(row, inputs=tuple(map(_without_batch, row.inputs)))


def _without_batch(one: SampleInput) -> SampleInput:
    is_batch = one.values is not None and one.values.dim() > 1 and one.values.shape[0] == 1
    if one.values is None or one.shape is None or not is_batch or modality_of(one.values, one.name) != "numbers":
        return one
    return replace(one, values=one.values[0], shape=one.shape[1:])


def _size(sample: ShownSample) -> int:
    parts = (*sample.inputs, *sample.first, *sample.second)
    return sum(len(part.picture) + len(part.sound) for part in parts)


def _sample(worst: WorstSamples, row: WorstSample, detail: _Detail) -> ShownSample:
    place = f"batch {row.batch}" + ("" if row.row is None else f", row {row.row}")
    unit = " dB" if worst.measure.endswith("dB") else f" {worst.measure}"
    centre = _centre(worst, row)
    inputs = [_part(worst, one, detail, centre=centre) for one in row.inputs[:_PARTS]]
    image = next((one for one in row.inputs if chosen_modality(worst.modality, one.name, one.values) == "image"), None)
    first, second = (_output(worst, row, which, image, detail, centre) for which in (0, 1))
    target = printable(row.target[:_TEXT])
    return ShownSample(place, f"{distance_text(row.distance)}{unit}", tuple(inputs), first, second, target)


def _output(
    worst: WorstSamples, row: WorstSample, which: int, image: SampleInput | None, detail: _Detail, centre: float
) -> tuple[SamplePart, ...]:
    """Return the output of one candidate: boxes on the image, tensors, tokens or classes."""
    text = printable((row.expected, row.found)[which][:_TEXT])
    if row.tokens is not None:
        return (_text("", row.tokens[which], row.tokens[1 - which], worst),)
    outputs, others = row.outputs[which], row.outputs[1 - which]
    boxes = _boxes(outputs, image)
    if boxes is not None and image is not None:
        said = f"{len(boxes) or 'no'} box{'' if len(boxes) == 1 else 'es'} of {_SURE:.0%} or more"
        return (replace(_part(worst, image, detail), name="", said=said, boxes=boxes),)
    seen = [one for one in outputs[:_PARTS] if chosen_modality(worst.modality, one.name, one.values) != "numbers"]
    if not seen:
        return (SamplePart("", "numbers", text),)
    by_name = {one.name: one for one in others}
    return tuple(_part(worst, one, detail, by_name.get(one.name), centre) for one in seen)


def _part(
    worst: WorstSamples, one: SampleInput, detail: _Detail, other: SampleInput | None = None, centre: float = 0.0
) -> SamplePart:
    """Return an input or output."""
    name, values = printable(one.name[:60]), one.values
    modality = chosen_modality(worst.modality, one.name, values)
    if values is None or modality == "numbers":
        return SamplePart(name, "numbers", printable(one.text[:_TEXT]))
    said = f"{str(values.dtype).removeprefix('torch.')} of shape {one.shape}"
    if modality == "image":
        first = values.dim() == 2 or bool(channels_first(values))
        height, width = _sides(one, first=first)
        shown = picture(values, detail.side)
        return SamplePart(name, "image", said, picture=shown, width=width, height=height)
    if modality == "audio":
        clip = _clip(values, centre, worst.sampling_rate, detail.seconds)
        return SamplePart(name, "audio", f"{said}{clip.said}", sound=clip.sound, wave=clip.wave, heard=clip.heard)
    if other is not None and other.values is not None and other.values.dim() == 1:
        return _text(name, values.tolist(), other.values.tolist(), worst)
    text = printable(worst.input_text(one))
    return SamplePart(name, "text", "", text[:_TEXT] + "…" * (len(text) > _TEXT))


def _sides(one: SampleInput, *, first: bool) -> tuple[int, int]:
    """Return height and width of an image as the model sees it; of a large one fewer values are kept."""
    shape = one.shape or (1, 1)
    height, width = shape[-2:] if first else shape[:2]
    return height, width


def _text(name: str, tokens: Sequence[int], others: Sequence[int], worst: WorstSamples) -> SamplePart:
    """Return tokens as a text in which the first one that the other candidate has not is marked, and near the start."""
    split = compared_text(tokens, others, worst.decode)
    said = f"deviates from token {split.agree + 1} of {split.tokens}"
    if split.agree == split.tokens:
        said = "" if len(others) == split.tokens else f"ends after {split.tokens} tokens"
    same = split.same if len(split.same) <= _BEFORE else "…" + split.same[-_BEFORE:]
    return SamplePart(name, "text", said, same, split.other, split.rest[:_TEXT])


# Boxes of a detector: the form of torchvision (corners in pixels) or of DETR (centre and size, as shares).


def _boxes(outputs: Sequence[SampleInput], image: SampleInput | None) -> tuple[SampleBox, ...] | None:
    """Return the likeliest boxes of an output on its image; None for what holds none."""
    by_name = {one.name.rpartition(".")[2]: one.values for one in outputs}
    if len(by_name) < len(outputs):
        return None  # of several images
    found = next((name for name in by_name if name.endswith("boxes")), None)
    boxes = by_name.get(found or "")
    if boxes is not None and boxes.shape == (4,):  # a single box was taken for the only row of a batch
        by_name = {name: None if values is None else values[None] for name, values in by_name.items()}
        boxes = boxes[None]
    if image is None or image.values is None or boxes is None or boxes.dim() != 2 or boxes.shape[-1] != 4:
        return None
    scores, labels = _scores(by_name, len(boxes))
    order = scores.argsort(descending=True)[:_BOXES].tolist()
    tall, broad = _sides(image, first=channels_first(image.values) is not False)
    sides = torch.tensor([broad, tall, broad, tall], dtype=torch.float64)
    wide = boxes.double()
    if found == "pred_boxes":
        corner = wide[:, :2] - wide[:, 2:] / 2
        shares = torch.cat([corner, wide[:, 2:]], 1)
    else:
        scaled = wide / sides if len(wide) and float(wide.abs().max()) > 2 else wide
        shares = torch.cat([scaled[:, :2], scaled[:, 2:] - scaled[:, :2]], 1)
    return tuple(
        SampleBox(left, top, width, height, f"{labels[at]} {scores[at]:.0%}")
        for at in order
        for left, top, width, height in [[round(share, 4) for share in shares[at].tolist()]]
        if scores[at] >= _SURE and bool(shares[at].isfinite().all())
    )


def _scores(by_name: dict[str, torch.Tensor | None], count: int) -> tuple[torch.Tensor, list[str]]:
    """Return how sure each box is, and its class."""
    scores, labels, logits = by_name.get("scores"), by_name.get("labels"), by_name.get("logits")
    if logits is not None and logits.dim() == 2 and len(logits) == count and logits.shape[1] > 1:
        likely, classes = _likely(logits.double())
        return likely, [f"class {label}" for label in classes.tolist()]
    if scores is None or scores.shape != (count,):
        scores = torch.ones(count)
    names = labels.tolist() if labels is not None and labels.shape == (count,) else None
    return scores.double(), ["box"] * count if names is None else [f"class {label}" for label in names]


def _likely(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how sure each query of a detector is of its class, and the class.

    Either the last class is "no object", which most queries have found then, and the classes share a softmax (DETR);
    or each class stands for itself (detectors that are trained with a focal loss).
    """
    is_nothing = logits.argmax(-1) == logits.shape[1] - 1
    if is_nothing.double().mean() > _MOST or not bool((logits.amax(-1) < 0).any()):
        found = logits.softmax(-1)[:, :-1].max(-1)
    else:
        found = logits.sigmoid().max(-1)
    return found.values, found.indices


# Waveforms.


@dataclass(frozen=True)
class _Clip:
    sound: str
    wave: tuple[float, ...]
    said: str
    heard: tuple[float, ...] = ()


def _centre(worst: WorstSamples, row: WorstSample) -> float:
    """Return where in a sound the outputs differ most, as a share of its length."""
    for first, second in zip(*row.outputs, strict=False):
        one, other = first.values, second.values
        if one is not None and other is not None and chosen_modality(worst.modality, first.name, one) == "audio":
            apart = (_mono(one) - _mono(other)).abs()
            return int(torch.nan_to_num(apart, nan=math.inf).argmax()) / len(apart)
    return 0.0


def _clip(values: torch.Tensor, centre: float, rate: int, seconds: float) -> _Clip:
    """Return the waveform of a sound, and a stretch of it that can be heard."""
    mono = torch.nan_to_num(_mono(values))
    stretches = mono.tensor_split(min(_STRETCHES, len(mono)))
    ends = (end for stretch in stretches for end in (stretch.min(), stretch.max()))
    wave = tuple(round(max(-1.0, min(1.0, float(end))), 3) for end in ends)
    length = round(seconds * rate)
    if not length:
        return _Clip("", wave, "")
    begin = max(0, min(round(centre * len(mono)) - length // 2, len(mono) - length))
    cut = mono[begin : begin + length]
    end = begin + len(cut)
    said = f"; heard: {begin / rate:.1f} to {end / rate:.1f} s" if len(cut) < len(mono) else ""
    heard = (round(begin / len(mono), 4), round(end / len(mono), 4))
    return _Clip(wav_address(cut, rate), wave, said, heard)


def _mono(values: torch.Tensor) -> torch.Tensor:
    wide = values.double()
    if not values.is_floating_point():
        wide = wide / max(float(wide.abs().max()), 1.0)
    return wide.mean(0) if wide.dim() == 2 and wide.shape[0] <= wide.shape[1] else wide.flatten()


def wav_address(mono: torch.Tensor, rate: int) -> str:
    """Return a sound as a ``data:`` address of a WAV file, in the 8 bits of µ-law (ITU-T G.711), which browsers play.

    Args:
        mono: of shape (time,), between -1 and 1.
        rate: values in a second; more than 8,000 are averaged to fewer.
    """
    step = max(1, math.ceil(rate / _RATE))
    length = len(mono) // step * step
    fewer = mono[:length].reshape(-1, step).mean(1) if length else mono
    data = _mu_law(torch.nan_to_num(fewer).clamp(-1, 1)).numpy().tobytes()
    plain = struct.pack("<HHIIHHH", 7, 1, rate // step, rate // step, 1, 8, 0)
    chunks = b"WAVE" + b"fmt " + struct.pack("<I", len(plain)) + plain
    chunks += b"fact" + struct.pack("<II", 4, len(data)) + b"data" + struct.pack("<I", len(data)) + data
    chunks += b"\0" * (len(data) % 2)
    file = b"RIFF" + struct.pack("<I", len(chunks)) + chunks
    return "data:audio/wav;base64," + base64.b64encode(file).decode()


def _mu_law(values: torch.Tensor) -> torch.Tensor:
    """Return values between -1 and 1 in the 8 bits of G.711."""
    wide = (values.abs() * 32767).round().long().clamp(max=32635) + 132
    exponent = (wide.double().log2().floor().long() - 7).clamp(0, 7)
    mantissa = (wide >> (exponent + 3)) & 0x0F
    sign = (values < 0).long() << 7
    return (~(sign | (exponent << 4) | mantissa) & 0xFF).to(torch.uint8)


_DARKEST, _BRIGHTEST = 0, 255


def is_image(values: torch.Tensor | None) -> bool:
    """Return whether a row looks like an image: 1 or 3 channels before or after height and width, floats or bytes."""
    return modality_of(values) == "image"


def picture(values: torch.Tensor, side: int) -> str:
    """Return an image as a ``data:`` address.

    Bytes and floats between 0 and 1 are shown unchanged; other ranges are stretched to black and white. NaN is
    black.

    Args:
        values: of shape (channels, height, width), (height, width, channels) or (height, width).
        side: pixels of its longer side at most; larger images lose lines and columns.

    Example:
        >>> picture(torch.zeros(3, 8, 8), 96).startswith("data:image/png;base64,")
        True
    """
    values = values[None] if values.dim() == 2 else values
    pixels = values if channels_first(values) else values.movedim(-1, 0)
    step = -(-max(pixels.shape[1:]) // side)
    shown = _bytes(pixels[:, ::step, ::step])
    return "data:image/png;base64," + base64.b64encode(png(shown.movedim(0, -1))).decode()


def png(pixels: torch.Tensor) -> bytes:
    """Encode uint8 pixels of shape (height, width, 1 or 3) as a PNG file."""
    height, width, channels = pixels.shape
    rows = pixels.contiguous().reshape(height, -1).tolist()
    data = b"".join(b"\0" + bytes(row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _bytes(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.uint8:
        return values
    wide = values.double()
    finite = wide[wide.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = (wide.clamp(low, high) - low) / ((high - low) or 1.0) * _BRIGHTEST
    return torch.nan_to_num(scaled, nan=_DARKEST).round().to(torch.uint8)
