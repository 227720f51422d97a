"""Odd tensors as samples, as calibration data, in comparisons and in calls: right, or an error of prepbench."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, InternalError, PrepbenchError


class Plain(torch.Tensor):
    """A subclass that adds nothing."""


class Nameless(torch.Tensor):
    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        raise ZeroDivisionError("no repr")


class Endless(torch.Tensor):
    def __len__(self) -> int:
        raise ZeroDivisionError("no len")


class Unique(torch.Tensor):
    def clone(self, *args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("no clone")

    def __deepcopy__(self, memo: Any) -> Any:
        raise ZeroDivisionError("no copy")


class NoTensor:
    def __repr__(self) -> str:
        raise ZeroDivisionError("no repr")

    def __len__(self) -> int:
        raise ZeroDivisionError("no len")


def _fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.randn(3, 4)


def _x() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


REFUSED: dict[str, Callable[[], Any]] = {
    "coordinates": lambda: _x().to_sparse(),
    "compressed rows": lambda: _x().to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(_x(), 0.1, 0, torch.qint8),
    "meta": lambda: torch.empty(3, 4, device="meta"),
    "8 bits": lambda: _x().to(torch.float8_e4m3fn),
    "fake": _fake,
    "onednn": lambda: _x().to_mkldnn(),
    "no tensor": NoTensor,
    "no copies": lambda: _x().as_subclass(Unique),
}
TAKEN: dict[str, Callable[[], torch.Tensor]] = {
    "subclass": lambda: _x().as_subclass(Plain),
    "repr raises": lambda: _x().as_subclass(Nameless),
    "len raises": lambda: _x().as_subclass(Endless),
    "expanded": lambda: torch.linspace(-1, 1, 4).expand(3, 4),
    "overlapping": lambda: torch.linspace(-1, 1, 6).as_strided((3, 4), (1, 1)),
    "transposed": lambda: torch.linspace(-1, 1, 12).reshape(4, 3).t(),
    "negated": lambda: torch._neg_view(_x()),
    "imaginary": lambda: torch.complex(_x(), _x() + 1).conj().imag,
    "no rows": lambda: torch.zeros(0, 4),
    "parameter": lambda: nn.Parameter(_x()),
}
GOOD = [torch.linspace(-1, 1, 4 * rows).reshape(rows, 4) for rows in (2, 3)]


@functools.cache
def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


@functools.cache
def _compiled() -> pb.CompiledModel:
    return _compile(GOOD)


def _compile(samples: list[Any], **options: Any) -> pb.CompiledModel:
    return pb.compile_model(_model(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment(), **options)


def _calibrate(x: Any) -> pb.CompiledModel:
    return _compile(GOOD, calibration_inputs=[x, *GOOD], quantization_settings=pb.QuantizationSettings())


WAYS: dict[str, Callable[[Any], Any]] = {
    "trace": lambda x: pb.recursive_trace(_model(), inputs=[x]),
    "prepare": lambda x: pb.prepare_model(_model(), inputs=[x]),
    "capture": lambda x: pb.capture(_model(), [x]),
    "compile": lambda x: _compile([x]),
    "calibrate": _calibrate,
    "compare": lambda x: pb.compare({"float": _model(), "compiled": _compiled()}, [x], rounds=0),
    "bench": lambda x: pb.Bench(_model(), calibration_inputs=[x]),
    "call": lambda x: _compiled()(x),
}
LAYOUT = {"coordinates", "compressed rows", "onednn"}
"""Formats that PyTorch computes with, so that graphs for PyTorch have them, too."""


class Doubles(nn.Module):
    """Has no weights, whose device and dtype would refuse an input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * 2


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "no copies"])
def test_a_model_without_weights_is_compiled_for_none_of_these(kind: str) -> None:
    with pytest.raises(pb.PrepbenchError):
        pb.compile_model(Doubles().eval(), tracing_inputs=[REFUSED[kind]()], deployment_settings=pb.EagerDeployment())


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", WAYS)
def test_what_no_graph_takes_is_an_error_of_ours(kind: str, way: str) -> None:
    if kind in LAYOUT and way in ("trace", "prepare", "capture", "bench"):
        WAYS[way](REFUSED[kind]())
        return
    if kind == "no copies" and way in ("call", "calibrate"):  # nothing has to be copied
        WAYS[way](REFUSED[kind]())
        return
    with pytest.raises(pb.PrepbenchError) as caught:
        WAYS[way](REFUSED[kind]())
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("kind", TAKEN)
def test_what_pytorch_takes_gives_what_pytorch_gives(kind: str) -> None:
    x = TAKEN[kind]()
    expected = _model()(torch.tensor(TAKEN[kind]().tolist()).reshape(-1, 4))
    torch.testing.assert_close(_compiled()(x), expected)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(way=st.sampled_from(sorted(set(WAYS) - {"call"})), kind=st.sampled_from(sorted(TAKEN)))
def test_ways_take_them_or_say_why_not(way: str, kind: str) -> None:
    caught: list[Exception] = []
    try:
        WAYS[way](TAKEN[kind]())
    except pb.PrepbenchError as error:
        caught.append(error)
    assert not any(isinstance(error, InternalError) for error in caught)


def test_the_remedy_fits() -> None:
    for kind, remedy in (("coordinates", "to_dense()"), ("nested", "to_padded_tensor"), ("quantized", "dequantize()")):
        with pytest.raises(InputError, match=r"input .*" + remedy.replace("(", r"\(").replace(")", r"\)")):
            _compiled()(REFUSED[kind]())
    with pytest.raises(InputError, match="Unique that cannot be copied: ZeroDivisionError: no clone"):
        pb.capture(_model(), [REFUSED["no copies"]()])


def test_the_report_says_what_becomes_of_nan_and_infinity() -> None:
    assert any("no NaN and no infinity" in remark for remark in _calibrate(GOOD[0]).report.remarks)
    assert not _compiled().report.remarks
    only_weights = _compile(
        GOOD,
        calibration_inputs=GOOD,
        quantization_settings=pb.QuantizationSettings(prefer_weights_only_quantization=True),
    )
    assert not any("NaN" in remark for remark in only_weights.report.remarks)


def test_float_models_give_what_pytorch_gives_for_nan_and_infinity() -> None:
    x = GOOD[1].clone()
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    torch.testing.assert_close(_compiled()(x), _model()(x), equal_nan=True)


class AsksForSizes(nn.Module):
    def forward(self, x: torch.Tensor, size: torch.Size) -> torch.Tensor:
        return x * 2 if isinstance(size, torch.Size) else x + size[0]


def test_a_graph_that_takes_sizes_for_a_tuple_is_refused() -> None:
    with pytest.raises(PrepbenchError, match="differ on sample 0"):
        pb.compile_model(AsksForSizes(), tracing_inputs=[(torch.randn(2, 3), torch.Size([4, 5]))])
