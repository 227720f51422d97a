"""The exporter to ONNX: the translations of onnxscript are read once, and again when there are others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onnxscript.function_libs.torch_lib import registration
from onnxscript.rewriter import RewriteRule
from torch.onnx._internal.exporter import _registration, _schemas

import prepbench as pb
from prepbench._torch_compat import onnx_exporter


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What onnxscript was asked for."""
    found: list[Any] = []
    owner = _registration.onnxscript_apis
    read = owner.get_torchlib_ops
    monkeypatch.setattr(owner, "get_torchlib_ops", lambda: found.append(read()) or found[-1], raising=False)
    monkeypatch.setattr(onnx_exporter, "_TRANSLATIONS", {})
    return found


def targets() -> dict[Any, list[Any]]:
    registry = _registration.ONNXRegistry.from_torchlib()
    return {target: [each.onnx_function for each in found] for target, found in registry.functions.items()}


def test_translations_are_read_once(reads: list[Any]) -> None:
    expected = targets()
    for _ in range(2):
        with onnx_exporter.translations_read_once():
            assert targets() == expected
    assert len(reads) == 2
    targets()  # users' own exports are as before
    assert len(reads) == 3


def test_signatures_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_exporter, "_SIGNATURES", {})
    worked_out: list[Any] = []
    read = _schemas.op_signature_from_function
    monkeypatch.setattr(
        _schemas,
        "op_signature_from_function",
        lambda function, *names, **options: worked_out.append(function) or read(function, *names, **options),
    )

    def signatures() -> list[str]:
        registry = _registration.ONNXRegistry.from_torchlib()
        return [str(each.signature) for found in registry.functions.values() for each in found]

    expected, all_of_them = signatures(), len(worked_out)
    for _ in range(2):
        with onnx_exporter.translations_read_once():
            assert signatures() == expected
    assert all_of_them < len(worked_out) <= 2 * all_of_them
    own = len(worked_out)

    def users(x: Any) -> Any:
        return x

    with onnx_exporter.translations_read_once():
        for _ in range(2):
            _schemas.op_signature_from_function(users, "own", "users")
    assert len(worked_out) == own + 2


def test_a_translation_that_is_added_is_found(reads: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with onnx_exporter.translations_read_once():
        assert "aten::relu" in targets()
        functions = registration.default_registry._registry
        only = {name: found for name, found in functions.items() if name != "aten::relu"}
        monkeypatch.setattr(registration.default_registry, "_registry", only)
        assert "aten::relu" not in targets()
        monkeypatch.setattr(registration.default_registry, "_registry", functions)
        assert "aten::relu" in targets()
    assert len(reads) == 3


def test_a_model_is_exported_with_translations_that_were_kept(reads: list[Any]) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    with onnx_exporter.translations_read_once():
        models = [torch.onnx.export(program, dynamo=True, verbose=False) for _ in range(2)]
    kinds = [[node.op_type for node in model.model.graph] for model in models if model is not None]
    assert kinds[0] == kinds[1]
    assert len(kinds[0]) > 0
    assert len(reads) == 1


class Sums(torch.nn.Module):
    """Casts that cancel, sums with zero and two norms: rules apply here."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.double().float().reshape(-1, 8).reshape(x.shape) + 0.0
        return self.norm(y).transpose(0, 1).transpose(0, 1) + torch.nn.functional.softmax(y @ y.t(), -1) @ self.norm(y)


def test_rules_that_cannot_begin_at_a_node_are_not_tried_and_the_graph_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = torch.export.export(Sums().eval(), (torch.ones(4, 8),))
    tries: list[str] = []
    rewrite = RewriteRule.try_rewrite
    monkeypatch.setattr(
        RewriteRule,
        "try_rewrite",
        lambda rule, *given, **options: tries.append(str(rule)) or rewrite(rule, *given, **options),
    )
    plain = _nodes(torch.onnx.export(program, dynamo=True, verbose=False))
    every = len(tries)
    with onnx_exporter.exact_rules():
        assert _nodes(torch.onnx.export(program, dynamo=True, verbose=False)) == plain
    assert 0 < len(tries) - every < every / 4


def _nodes(exported: Any) -> list[Any]:
    return [(node.op_type, [value and value.name for value in node.inputs]) for node in exported.model.graph]


class Constants(torch.nn.Module):
    """Each operator with a constant that is nearly the one that changes nothing."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.log(x + 1e-9),
            torch.log(2e-10 + x),
            torch.log(x - -3e-9),
            (x + 1) * 1.000004 - 1,
            (x + 1) / 1.000006 - 1,
            torch.log(x.clamp(min=1e-10)),
            torch.log(torch.maximum(x, torch.tensor(3e-11))),
            x.clamp(-0.5, 0.5) + x.clamp_min(-0.25).clamp_max(0.75) + x.clamp_min(0.1).clamp_max(0.9),
            x.clamp_min(0.2).clamp_min(0.3) + x.clamp_min(0.4).clamp_min(0.45),
        ]


def test_constants_are_kept_and_have_names_of_their_own() -> None:
    program = torch.export.export(Constants(), (torch.ones(4),))
    with onnx_exporter.exact_rules():
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    x = torch.tensor([0.0, 1e-9, 0.3, 2.0])
    for place, (found, expected) in enumerate(zip(exported(x), Constants()(x), strict=True)):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7, msg=f"result {place}")


def test_additions_of_nothing_still_disappear() -> None:
    program = torch.export.export(Sums().eval(), (torch.ones(4, 8),))
    with onnx_exporter.exact_rules():
        exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert [node.op_type for node in exported.model.graph].count("Add") == 1


class TinyEpsilon(torch.nn.Module):
    """An optimizer that takes 1e-9 for zero makes infinities of its zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(self.layer(x).relu() + 1e-9)


@pytest.mark.parametrize(
    "missing",
    [
        "torch.onnx._internal.exporter._fx_passes",
        "torch.onnx._internal.exporter._registration",
        "onnxscript.function_libs.torch_lib.registration",
        "onnxscript.rewriter",
        "onnxscript.rewriter._matcher",
    ],
)
def test_exports_without(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = onnx_exporter._module

    def module(name: str) -> Any:
        return None if name == missing else found(name)

    monkeypatch.setattr(onnx_exporter, "_module", module)
    torch.manual_seed(0)
    model, samples = TinyEpsilon().eval(), [torch.randn(2, 4), torch.randn(3, 4)]
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment(), discard_input_model=False
    )
    torch.testing.assert_close(compiled(samples[1]), model(samples[1]))


def test_every_part_is_here() -> None:
    with onnx_exporter.exact_rules() as exact:
        assert exact
    assert onnx_exporter._module("onnxscript.no_such_part") is None
