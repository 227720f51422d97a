"""record_inputs: what a part of a pipeline receives becomes samples, and the part is as before afterwards."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError


class Pipeline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.decoder = Decoder()

    def generate(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        state = self.encoder(x)
        for _ in range(steps):
            state = self.decoder.decode(state, scale=2.0)
        return state


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def decode(self, state: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        state.mul_(2)
        return self.layer(state) * scale


def test_calls_of_a_method_become_samples_for_capture() -> None:
    pipeline = Pipeline().eval()
    with pb.record_inputs(pipeline.decoder.decode, distinct_shapes=True) as recorded, torch.no_grad():
        pipeline.generate(torch.ones(2, 4), 3)
        pipeline.generate(torch.ones(5, 4), 1)
    assert recorded.calls == 4
    assert [tuple(sample.args[0].shape) for sample in recorded] == [(2, 3), (5, 3)]
    assert [sample.kwargs for sample in recorded] == [{"scale": 2.0}] * 2
    assert "decode" not in vars(pipeline.decoder)
    captured = pb.capture(pipeline.decoder.decode, recorded)
    assert captured.verify().passed
    assert "2 inputs of Decoder.decode recorded, 4 calls" in repr(recorded)


def test_inputs_are_those_before_the_call() -> None:
    decoder = Decoder()
    with pb.record_inputs(decoder.decode) as recorded, torch.no_grad():
        decoder.decode(torch.ones(1, 3))
    assert torch.equal(recorded.samples[0].args[0], torch.ones(1, 3))


class Memory:
    """Holds nothing until something is written."""

    def __init__(self) -> None:
        self.layers: list[torch.Tensor] = []


class Writer(nn.Module):
    def forward(self, x: torch.Tensor, memory: Memory) -> torch.Tensor:
        memory.layers.append(x)
        return torch.cat(memory.layers)


def test_what_a_recording_says_of_caches() -> None:
    writer, memory = Writer(), Memory()
    with pb.record_inputs(writer) as recorded:
        for _ in range(3):
            writer(torch.ones(1, 2), memory)
    kinds = ["empty Memory", "Memory of float32[1, 2]", "Memory of 2 float32[1, 2]"]
    assert repr(recorded).splitlines()[1:] == [f"  (float32[1, 2], {kind})" for kind in kinds]


def test_an_empty_cache_is_recorded_empty() -> None:
    writer, memory = Writer(), Memory()
    with pb.record_inputs(writer) as recorded:
        writer(torch.ones(1, 2), memory)
        writer(torch.ones(1, 2), memory)
    assert [len(sample.args[1].layers) for sample in recorded] == [0, 1]
    assert len(memory.layers) == 2


def test_calls_through_the_module_and_through_forward_are_seen() -> None:
    layer = nn.Linear(4, 3)
    with pb.record_inputs(layer, max_samples=2) as recorded:
        layer(torch.ones(1, 4))
        layer.forward(torch.ones(2, 4))
        layer(torch.ones(3, 4))
    assert len(recorded) == 2
    assert recorded.calls == 3
    assert pb.recursive_trace(layer, inputs=recorded).failures == ()


def test_everything_is_as_before_after_an_error_and_when_nested() -> None:
    layer = nn.Linear(4, 3)
    with pytest.raises(RuntimeError), pb.record_inputs(layer) as outer, pb.record_inputs(layer) as inner:
        layer(torch.ones(1, 5))
    assert "forward" not in vars(layer)
    assert len(outer) == len(inner) == 1


def test_calls_from_threads_are_all_recorded() -> None:
    layer = nn.Linear(4, 3)
    with pb.record_inputs(layer) as recorded:
        threads = [threading.Thread(target=layer, args=(torch.ones(n + 1, 4),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(sample.args[0].shape[0] for sample in recorded) == list(range(1, 9))
    assert [sample.index for sample in recorded] == list(range(8))


def test_a_part_that_was_never_called_says_so() -> None:
    pipeline = Pipeline()
    with pb.record_inputs(pipeline.decoder) as recorded:
        pipeline.generate(torch.ones(1, 4), 1)  # calls decode, not the module
    with pytest.raises(InputError, match="Decoder was not called inside the block"):
        pb.capture(pipeline.decoder.decode, recorded)


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(InputError, match="bound method"):
        pb.record_inputs(torch.relu)


class Marks:
    """A part of a cache that marks what was done, and holds no tensor until then."""

    def __init__(self) -> None:
        self.done = {0: False}


class Keys:
    def __init__(self) -> None:
        self.keys = torch.ones(2, 3)


class Cache:
    def __init__(self, part: object) -> None:
        self.layers = [part]


class Marking(nn.Module):
    def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        for part in cache.layers:
            if isinstance(part, Marks):
                part.done[0] = True
        return x


def test_an_empty_cache_of_a_known_class_is_recorded_as_it_was() -> None:
    model, x = Marking(), torch.ones(2, 3)
    with pb.record_inputs(model) as recorded:
        model(x, Cache(Keys()))  # from now on the class is known to hold tensors
        model(x, Cache(Marks()))
    assert recorded.samples[1].args[1].layers[0].done == {0: False}
