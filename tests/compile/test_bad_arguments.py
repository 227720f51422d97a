"""Bad arguments of every public function and method: the error is ours, names the argument and says what to give."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import prepbench as pb
from prepbench.bench.history import new_run
from prepbench.document.model import Failure
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.search.search_result import SearchCandidate

REMEDY = re.compile(
    r"\b(Give|Write|write|Or |It has|The model has|Choose|Call|Check|Create|must be|Infer|Convert|Move|Capture|"
    r"Nearest|create|give)\b"
)

VALUES: Sequence[Any] = (
    None, True, 3, -1, 10**12, 2.5, float("nan"), "", "no such", "a\0b", b"bytes", b"", [], [1], (1, "a"), {}, {0: 1},
    {"a": 1}, lambda: 0, object(), int, torch.nn.Linear, torch.ones(2, device="meta"), torch.eye(2).to_sparse(),
    torch.ones(2, dtype=torch.complex64).conj().imag, "long " * 1000, [torch.ones(40, 40)], {"a": torch.ones(40, 40)},
)  # fmt: skip


class Model(torch.nn.Module):
    """One layer of each kind that matters: a convolution-like one, an embedding and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(self.table(ids)))


class Branch(torch.nn.Module):
    """A model that cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x > 0 else -x


SAMPLES = [torch.tensor([1, 2]), torch.tensor([1, 2, 3])]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written by mistake does not land in the project."""
    monkeypatch.chdir(tmp_path)


@cache
def compiled() -> Any:
    """A compiled model, made once."""
    return pb.compile_model(Model(), tracing_inputs=SAMPLES, deployment_settings=pb.EagerDeployment())


def bench(model: torch.nn.Module) -> pb.Bench:
    """A bench with a run in its history."""
    made = pb.Bench(model, calibration_inputs=SAMPLES)
    made.run_history.add(new_run(made.state, "int8", 0.0))
    return made


def search_result() -> pb.SearchResult:
    """A result that can be asked for another budget."""
    best, budget = SearchCandidate("float", "", {}), pb.Budget(min_metric=20)
    known = SimpleNamespace(result=lambda budget: search_result(), predicted=lambda layers, target: best)
    return pb.SearchResult(budget, (best,), best, True, True, "", "SQNR", "dB", True, 1.0, 1, 1, _known=known)


@cache
def objects() -> dict[str, Any]:
    """One object of each public class, made once."""
    model = Model().eval()
    return {
        "Bench": bench(model),
        "Captured": pb.capture(model, SAMPLES),
        "Failure": pb.recursive_trace(Branch(), inputs=[torch.ones(())]).failures[0],
        "Comparison": pb.compare({"float32": model}, SAMPLES, rounds=0),
        "CompiledModel": compiled(),
        "DynamicAxes": pb.DynamicAxes.infer(SAMPLES, model),
        "GraphCollection": pb.recursive_trace(model),
        "Job": pb.Job(lambda progress: 1),
        "Profile": pb.profile(model, SAMPLES[:1], rounds=1),
        "SearchResult": search_result(),
        "Results": pb.Results(()),
        "SweepResult": pb.SweepResult(()),
        "LayerInspection": pb.inspect_layer(model, SAMPLES, "linear"),
        "Sensitivity": pb.sensitivity(model, SAMPLES, candidates=[pb.QuantizationSettings()], exact=1),
        "LayerQuantizationSettings": pb.LayerQuantizationSettings(),
        "LayerPruningSettings": pb.LayerPruningSettings(),
        "QuantizationSettings": pb.QuantizationSettings(),
        "OnnxRuntimeDeployment": pb.OnnxRuntimeDeployment(),
        "CompileOptions": pb.CompileOptions(),
        "RobustTracer": pb.RobustTracer(),
        "Sample": pb.Sample((SAMPLES[0],)),
        "TrainableModel": pb.trainable(model, calibration_inputs=SAMPLES, **INT8),
    }


GOOD: dict[str, Any] = {
    **dict.fromkeys(("module_or_func", "model", "root", "module_or_method"), Model),
    **dict.fromkeys(("inputs", "samples", "data", "tracing_inputs", "calibration_inputs"), lambda: SAMPLES),
    "candidates": lambda: {"float32": Model()}, "settings": pb.QuantizationSettings, "base": pb.QuantizationSettings,
    "path": lambda: "ids", "dim": lambda: 0, "dynamic": lambda: True, "name": lambda: "batch", "key": str, "fqn": str,
    "pattern": lambda: "linear", "precision": lambda: "float32", "target": lambda: "ONNX Runtime", "axes": tuple,
    "leaf_wrap": lambda: False, "listener": lambda: print, "function": lambda: len, "m": lambda: torch.nn.GELU,
    "k": lambda: 1, "folder": lambda: Path("no/such/folder"), "captured": lambda: objects()["Captured"],
    "work": lambda: print, **dict.fromkeys(("id", "first", "second"), lambda: objects()["Bench"].runs[0].id),
     "pinned": lambda: True, "leaf": lambda: False, "states": lambda: objects()["Bench"].steps[0], "position": int,
    "patterns": lambda: ["linear"], "field": lambda: "weights_num_bits", "rules": dict, "value": lambda: 8,
    "leaves": lambda: {"ids": SAMPLES[0]}, "sizes": lambda: (1, 2), "output": lambda: torch.ones(2, 3),
    "prompts": lambda: torch.ones(1, 3).long(), "budget": lambda: pb.Budget(min_metric=20), "layers": dict,
    "sweep.axes": lambda: {"model": {"net": Model()}}, "rounds": lambda: 0, "pruning_settings": pb.PruningSettings,
    "LayerPruningSettings.applied_to.base": pb.PruningSettings, "prepared": lambda: objects()["TrainableModel"],
    "SweepResult.find.model": lambda: "net", "SweepResult.find.settings": lambda: "int8", "mode": bool,
    "layer": lambda: "linear",
}  # fmt: skip
"""What to give for arguments without a default, by name; :data:`ALSO` has some with one."""

ALSO = {"sweep": ("calibration_inputs", "rounds"), **dict.fromkeys(("Bench", "compile_model"), ("calibration_inputs",))}

LEFT_OUT = {
    # data that we make, and that nobody makes by hand
    "Captured", "Comparison", "CompiledModel", "LayerInspection", "PreparationReport", "Profile", "Progress", "Results",
    "SearchResult", "Recovery", "Sample", "Sensitivity", "SweepResult", "TrainableModel",
    # questions about any object, which are answered with no
    "is_failed", "is_unvisited", "failure_msg", "is_registered_leaf", "is_leaf_module", "record_call_module", "allows",
    # what prepbench calls itself
    "runs",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One argument of one public function."""

    call: str
    function: Callable[[], Callable[..., Any]]
    name: str
    annotation: str
    needed: tuple[str, ...]

    def call_with(self, value: Any) -> Any:
        """Call the function with this value; the other arguments are good ones."""
        good = {name: GOOD.get(f"{self.call}.{name}", GOOD.get(name)) for name in self.needed if name != self.name}
        return self.function()(**{name: make() for name, make in good.items()}, **{self.name: value})

    def takes(self, value: Any) -> bool:
        """Whether the annotation allows the value, or says nothing about it."""
        return any(_is_a(value, kind.strip()) for kind in _alternatives(self.annotation))


def _alternatives(annotation: str) -> list[str]:
    plain = re.sub(r"\[[^\[\]]*\]", "", annotation)
    while plain != (plain := re.sub(r"\[[^\[\]]*\]", "", plain)):
        pass
    return plain.split("|")


def _is_a(value: Any, kind: str) -> bool:
    if kind == "Any":
        return True
    if kind in ("None", "bool", "float", "str"):
        return type(value).__name__.removesuffix("Type") == kind or (kind == "float" and type(value) is int)
    if kind == "int":
        return type(value) is int
    if kind in ("Callable", "ProgressCallback", "Metric", "Target"):
        return callable(value) and not isinstance(value, type)
    if kind in ("Mapping", "dict", "LayerRules", "PruningRules"):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if kind in ("Iterable", "Sequence", "tuple"):
        return isinstance(value, str | list | tuple | Mapping | torch.Tensor)
    return kind == "type" and isinstance(value, type)


def arguments() -> Iterator[Argument]:
    """Every argument of every public function, method and class."""
    for name in pb.__all__:
        thing = getattr(pb, name)
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            yield from _arguments(name, thing.__init__, lambda thing=thing: thing)  # type: ignore[misc]
            for method, function in inspect.getmembers(thing, callable):
                ours = (getattr(function, "__module__", None) or "").startswith("prepbench.")
                if ours and not method.startswith("_"):
                    yield from _arguments(f"{name}.{method}", function, partial(_method, name, thing, method))
        elif not inspect.isclass(thing) and callable(thing):
            yield from _arguments(name, thing, lambda thing=thing: thing)  # type: ignore[misc]
    yield from _arguments("Failure.reproduce", Failure.reproduce, partial(_method, "Failure", Failure, "reproduce"))
    yield from _arguments("metrics.top_k", pb.metrics.top_k, lambda: pb.metrics.top_k)
    yield from _arguments("metrics.bits_per_byte", pb.metrics.bits_per_byte, lambda: pb.metrics.bits_per_byte)


def _method(name: str, thing: type, method: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(objects().get(name, thing), method)
    return found


def _arguments(call: str, function: Any, get: Callable[[], Callable[..., Any]]) -> Iterator[Argument]:
    if call.rpartition(".")[2] in LEFT_OUT:
        return
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        p for p in inspect.signature(function).parameters.values() if p.name != "self" and p.kind not in kinds
    ]
    needed = (*(p.name for p in parameters if p.default is p.empty), *ALSO.get(call, ()))
    for parameter in parameters:
        if parameter.name in LEFT_OUT:
            continue
        yield Argument(call, get, parameter.name, str(parameter.annotation), needed)


EVERY = list(arguments())
ARGUMENTS = [argument for argument in EVERY if argument.annotation != "Any"]


def check_refused(argument: Argument, value: Any) -> None:
    """The value is refused with an error of ours that names the argument and says what to give."""
    with pytest.raises(PrepbenchError) as caught:
        argument.call_with(value)
    kinds = [kind for kind in type(caught.value).__mro__ if kind.__module__ == "builtins"]
    assert kinds[0] is not Exception, "the error is no standard one"
    text = str(caught.value)
    owner = argument.call.partition(".")[0]
    assert argument.name in text or f"{owner}.{argument.name}" in text, text
    assert REMEDY.search(text), text
    assert len(text) < 1000, "the value itself is in the message"


@pytest.mark.parametrize("argument", ARGUMENTS, ids=lambda argument: f"{argument.call}-{argument.name}")
def test_values_of_another_type_are_refused(argument: Argument) -> None:
    for value in VALUES:
        if not argument.takes(value):
            check_refused(argument, value)


@pytest.mark.parametrize(
    "argument",
    [argument for argument in EVERY if argument.annotation == "Any"],
    ids=lambda argument: f"{argument.call}-{argument.name}",
)
def test_what_may_be_anything_raises_errors_of_ours_or_none(argument: Argument) -> None:
    for value in VALUES:
        with contextlib.suppress(PrepbenchError):
            argument.call_with(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(argument=st.sampled_from(ARGUMENTS), value=JSON)
def test_made_up_values_are_refused(argument: Argument, value: Any) -> None:
    if not argument.takes(value):
        check_refused(argument, value)


def test_every_public_function_is_tried() -> None:
    tried = {argument.call.partition(".")[0] for argument in ARGUMENTS}
    names = {name for name in pb.__all__ if not isinstance(getattr(pb, name), type)} - {
        "metrics",
        "demo",
    }  # takes no arguments
    assert names <= tried
    assert len(ARGUMENTS) > 150


RULE = pb.LayerQuantizationSettings(skip_quantization=True)
OTHER = pb.LayerQuantizationSettings(weights_num_bits=4)
INT8: dict[str, Any] = {
    "deployment_settings": pb.OnnxRuntimeDeployment(), "quantization_settings": pb.QuantizationSettings(),
}  # fmt: skip


class Shared(torch.nn.Module):
    """One linear layer in two containers."""

    def __init__(self) -> None:
        super().__init__()
        layer = torch.nn.Linear(2, 2)
        self.one, self.another = torch.nn.Sequential(layer), torch.nn.Sequential(layer)


FIXED: dict[str, tuple[Callable[[], Any], str]] = {
    "meta samples for calibration": (
        lambda: pb.compile_model(Model(), calibration_inputs=[SAMPLES[0].to("meta")], **INT8),
        r"calibration_inputs\[0\].*meta",
    ),
    "a model without data": (
        lambda: pb.compile_model(Model().to("meta"), tracing_inputs=SAMPLES), "module_or_func has weights on meta",
    ),
    "a scripted model to prepare": (
        lambda: pb.prepare_model(torch.jit.script(Model()), inputs=SAMPLES), "model is a scripted module",
    ),
    "samples in place of modules": (
        lambda: pb.prepare_model(Model(), [torch.ones(40, 40)]), r"modules_to_exclude\[0\] is Tensor; give",
    ),
    "a transform that raises": (
        lambda: pb.compile_model(Model(), tracing_inputs=SAMPLES, data_transform_fn=lambda batch: batch.pixels),
        r"transform raises on tracing_inputs\[0\], .*AttributeError",
    ),
    "a rule for a layer that cannot be quantized": (
        lambda: pb.explain_settings(Model(), pb.QuantizationSettings(), {"table": RULE}), "'table'.*changes nothing",
    ),
    "rules of one rank that contradict each other": (
        lambda: pb.explain_settings(Shared(), pb.QuantizationSettings(), {"one": RULE, "another": OTHER}),
        r"\['one'\] and \['another'\] contradict",
    ),
    "a leaf that is an instance": (lambda: pb.RobustTracer.register_leaf(torch.nn.GELU()), r"m must be a class.*GELU"),
    "an axis that is not there": (
        lambda: compiled().export("model.onnx", dynamic_axes={"x": {0: "b"}}),
        "dynamic_axes names 'x'; there are 'ids'",
    ),
    "a sparse tensor": (lambda: compiled()(SAMPLES[0].to_sparse()), r"ids must be.*to_dense\(\)"),
    "a tensor on meta": (lambda: compiled()(SAMPLES[0].to("meta")), "ids must be.*meta"),
    "a nested tensor": (
        lambda: compiled()(torch.nested.nested_tensor([SAMPLES[0], SAMPLES[1]])), r"ids must be.*to_padded_tensor",
    ),
    "an argument that is not there": (
        lambda: pb.compile_model(Model(), tracing_inputs=SAMPLES, sampling=1),
        r"no argument 'sampling'\. Samples are given as tracing_inputs=.* Extra options are",
    ),
    "samples under another name": (lambda: pb.compile_model(Model(), samples=SAMPLES), "no argument 'samples'"),
    "a position beyond the choices": (lambda: objects()["Bench"].take_over([], 0), "position must be less than 0"),
    "a fix that is no name": (
        lambda: pb.fix(Model(), SAMPLES).model_with([]), r"fqns: there is no fix for \[\]",  # type: ignore[arg-type]
    ),
    "an index out of range": (lambda: compiled()(torch.tensor([1, 99])), "ids holds indices.*0 to 9, got 1 to 99"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED)
def test_what_was_once_a_raw_error_or_let_through(name: str) -> None:
    call, message = FIXED[name]
    with pytest.raises(PrepbenchError, match=message):
        call()


def test_the_default_device_meta_is_refused_for_calibration() -> None:
    model = Model()
    torch.set_default_device("meta")
    try:
        with pytest.raises(PrepbenchError, match=r"set_default_device\('cpu'\)"):
            pb.compile_model(model, calibration_inputs=SAMPLES, **INT8)
    finally:
        torch.set_default_device("cpu")


def test_an_exported_module_is_compiled() -> None:
    model = torch.nn.Linear(4, 2)
    module = torch.export.export(model, (torch.ones(2, 4),)).module()
    made = pb.compile_model(module, tracing_inputs=[torch.ones(2, 4)], deployment_settings=pb.EagerDeployment())
    assert torch.equal(made(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_a_negated_view_is_an_input_like_any_other() -> None:
    model = torch.nn.Linear(4, 2)
    made = pb.compile_model(model, tracing_inputs=[torch.ones(2, 4)], deployment_settings=pb.OnnxRuntimeDeployment())
    view = torch.ones(2, 4, dtype=torch.complex64).conj().imag
    assert view.is_neg()
    torch.testing.assert_close(made(view), model(view))


def test_the_bench_takes_the_name_that_a_compiled_model_has() -> None:
    bench = objects()["Bench"]
    bench.set_target("openvino")
    assert bench.state.target == "OpenVINO"


def test_globs_of_one_rank_follow_the_order_in_which_they_are_written() -> None:
    rows = pb.explain_settings(Model(), pb.QuantizationSettings(), {"*": RULE, "lin*": OTHER})
    assert [(row.rule, row.overruled) for row in rows] == [("lin*", ("*",))]


def test_control_characters_of_a_users_error_are_escaped() -> None:
    class Red(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("\x1b[31mred")

    with pytest.raises(PrepbenchError) as caught:
        pb.capture(Red(), [torch.ones(1)])
    assert "\x1b" not in str(caught.value)
    assert "\\x1b[31mred" in str(caught.value)
    assert str(SettingsError("\x1b[0m")) == "\\x1b[0m"
