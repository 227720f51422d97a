"""What prepbench itself does wrong is told as its own error, and what a user's code does wrong is not."""

from __future__ import annotations

import importlib
import itertools
import linecache
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench import internal_errors
from prepbench.bench.cards import error_card
from prepbench.command_line import info
from prepbench.command_line.main import main
from prepbench.errors import CaptureError, InputError, InternalError, TorchVersionError
from prepbench.internal_errors import internal_error, raise_if_internal, tells_internal_errors
from prepbench.jobs import Job
from prepbench.packages import TESTED

SAMPLES = [torch.linspace(-1, 2, 8).view(2, 4)]


class Scaled(nn.Module):
    """Enough to go through every room: own code, layers, a size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * x.shape[-1]


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


_numbers = itertools.count()


def written_as_ours(text: str, **names: Any) -> dict[str, Any]:
    """What a module of prepbench with this text would define."""
    file = f"{Path(internal_errors.__file__).parent}/made_{next(_numbers)}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), names)  # written above
    return names


def raised(call: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


# -- the rule


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ndef f():\n    return torch._no_such_part",
        "import torch\ndef f():\n    return torch._C._no_such_part",
        "def f():\n    import torch._no_such_part",
        "import importlib\ndef f():\n    importlib.import_module('torch._no_such_part')",
        "def f():\n    return no_such_name",
        "def f():\n    return {}['missing']",
        "def f():\n    assert not 1",
        "import torch\ndef f():\n    torch.relu(torch.ones(2), of='nothing')",
        "def g(a):\n    pass\ndef f():\n    g(\n        1,\n        2,\n    )",
        "def f(x=None):\n    x[0]",
        "def g():\n    return ()\ndef h():\n    pass\ndef f():\n    h(*g(), 1)",
        "def f():\n    raise AttributeError('as a library would')",
    ],
)
def test_a_mistake_in_a_line_of_ours_is_ours(text: str) -> None:
    error = raised(written_as_ours(text)["f"])
    found = internal_error(error)
    assert isinstance(found, InternalError)
    assert found.__cause__ is error
    assert f"made_{next(_numbers) - 1}.py" in str(found).replace(f"made_{next(_numbers) - 2}", "") or "made_" in str(
        found
    )


@pytest.mark.parametrize(
    "text",
    [
        "def f(*args, **kwargs):\n    return g(*args, **kwargs)",
        "def f(x):\n    return h(g, x)\ndef h(called, x):\n    called(x)",
        "class A:\n    def __init__(self):\n        self.g = g\n    def call(self, x):\n        return self.g(x)\n"
        "def f(x):\n    return A().call(x)",
        "def f(x):\n    raise TypeError('This is not what a model takes. Give a tensor.')",
        "def f(x):\n    g(x)",
    ],
)
def test_what_is_handed_on_is_not_ours(text: str) -> None:
    # relu of text fails in torch's own C++, with no frame below that of ours
    names = written_as_ours(text, g=torch.relu)
    error = raised(lambda: names["f"]("text"))
    assert type(error) is TypeError
    is_plain = text.endswith("    g(x)")  # a call that prepbench itself makes, of a function that it knows
    assert isinstance(internal_error(error), InternalError) == is_plain


def test_a_library_that_misses_something_in_an_object_of_ours() -> None:
    made = written_as_ours("class Mode:\n    pass\ndef replaced(a):\n    return a", __name__="prepbench.made")
    error = raised(lambda: torch.utils._pytree.tree_map(lambda each: each.missing, [made["Mode"]()]))
    assert internal_error(error) is None  # the innermost line is this test's, which stands for a user's
    asks = compile(
        "def asks(value):\n    return value.missing\ndef calls(f):\n    return f(1, 2)", torch.__file__, "exec"
    )
    names: dict[str, Any] = {}
    exec(asks, names)  # written above
    assert isinstance(internal_error(raised(lambda: names["asks"](made["Mode"]()))), InternalError)
    assert isinstance(internal_error(raised(lambda: names["calls"](made["replaced"]))), InternalError)
    assert internal_error(raised(lambda: names["asks"](nn.Linear(1, 1)))) is None
    assert internal_error(raised(lambda: names["calls"](lambda: 0))) is None


def test_what_a_library_raises_for_us_counts_where_no_model_is_at_work() -> None:
    names = written_as_ours("def f():\n    g([])", g=torch.nn.functional.interpolate)
    error = raised(names["f"])
    assert type(error) is AttributeError
    assert internal_error(error) is None
    assert isinstance(internal_error(error, of_libraries=True), InternalError)
    handed_on = written_as_ours("def f(g):\n    g([])")["f"]
    error = raised(lambda: handed_on(torch.nn.functional.interpolate))
    assert internal_error(error, of_libraries=True) is None


class SortsWrongly(nn.Module):
    """Calls an operator of torch with arguments that it does not take; prepbench has a function of the same name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sort(1, descending=True, stable=True).values


def _executed() -> nn.Module:
    names: dict[str, Any] = {"nn": nn}
    text = "class Sorts(nn.Module):\n    def forward(self, x):\n        return x.sort(1, descending=True, stable=True)"
    exec(text, names)  # written above
    return names["Sorts"]()  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [SortsWrongly, lambda: torch.fx.symbolic_trace(SortsWrongly()), _executed])
def test_a_wrong_call_in_code_without_a_file_is_the_models(make: Callable[[], nn.Module]) -> None:
    importlib.import_module("prepbench.targets.onnx.translations").sort  # noqa: B018
    with pytest.raises(CaptureError, match=r"itself raises on inputs\[0\].*sort\(\) takes"):
        pb.compile_model(make(), tracing_inputs=SAMPLES)


def test_another_function_may_have_the_name_of_one_of_ours() -> None:
    ours = written_as_ours("def renamed(a, b=1):\n    return a", __name__="prepbench.made")["renamed"]
    calls = compile("def calls(f, *args, **kwargs):\n    return f(*args, **kwargs)", torch.__file__, "exec")
    names: dict[str, Any] = {}
    exec(calls, names)  # written above

    def renamed(a: int, b: int, c: int) -> None:
        pass

    renamed.__qualname__ = "renamed"
    for args, kwargs in (((1, 2, 3, 4), {}), ((1,), {}), ((1, 2, 3), {"a": 1})):
        error = raised(lambda args=args, kwargs=kwargs: names["calls"](renamed, *args, **kwargs))  # type: ignore[misc]
        is_possible = "multiple values" in str(error) or "'b'" in str(error)
        assert isinstance(internal_error(error), InternalError) == is_possible
    for args, kwargs in (((1, 2, 3), {}), ((), {}), ((1,), {"c": 1}), ((1,), {"a": 1})):
        error = raised(lambda args=args, kwargs=kwargs: names["calls"](ours, *args, **kwargs))  # type: ignore[misc]
        assert isinstance(internal_error(error), InternalError)


def test_errors_of_other_types_are_not_ours() -> None:
    error = raised(written_as_ours("def f():\n    raise ValueError('odd')")["f"])
    assert internal_error(error, of_libraries=True) is None
    raise_if_internal(error)


def test_what_torch_lacks_stays_that_whatever_was_made_of_it() -> None:
    lacking = TorchVersionError("torch 9 lacks a part")
    wrapper = type("InternalTorchDynamoError", (RuntimeError,), {"__module__": "torch._dynamo.exc"})
    wrapped = wrapper("TorchVersionError: torch 9 lacks a part")
    wrapped.__context__ = lacking
    outer = RuntimeError("around it")
    outer.__cause__ = wrapped
    assert internal_error(outer) is lacking
    with pytest.raises(TorchVersionError, match="lacks a part"):
        raise_if_internal(outer)


def test_the_text_has_the_place_the_versions_and_what_to_do() -> None:
    made = written_as_ours("import torch\n\n\ndef f():\n    return torch._no_such_part\n")
    text = str(internal_error(raised(made["f"])))
    assert "py:5 (f): AttributeError: module 'torch' has no attribute '_no_such_part'." in text
    assert f"torch {torch.__version__}" in text
    assert f"prepbench {pb.__version__}" in text
    assert "python -m prepbench info" in text
    assert "model(*inputs)" not in text


def test_a_version_that_was_not_tested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "torch", ("0.1", "0.2"))
    text = str(internal_error(raised(written_as_ours("def f():\n    return nothing")["f"])))
    assert f"torch {torch.__version__} is newer than the versions that prepbench is tested with (0.1 to 0.2)" in text


def test_a_public_function_tells_it() -> None:
    broken = tells_internal_errors(written_as_ours("def f():\n    return nothing")["f"])
    with pytest.raises(InternalError, match="NameError"):
        broken()


def test_a_public_function_that_is_called_wrongly_is_not_ours() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'smaples'"):
        pb.capture(Scaled(), smaples=SAMPLES)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        pb.load_compiled("folder", modle=Scaled())  # type: ignore[call-arg]


# -- in each room


def _compiled(target: Any) -> Any:
    return pb.compile_model(Scaled().eval(), tracing_inputs=SAMPLES, deployment_settings=target)


CALLS: dict[str, Callable[[], Any]] = {
    "trace": lambda: pb.recursive_trace(Scaled(), inputs=SAMPLES).failures,
    "trace without inputs": lambda: pb.recursive_trace(Scaled()).failures,
    "capture": lambda: pb.capture(Scaled(), SAMPLES),
    "capture with leaves": lambda: pb.capture(Scaled(), SAMPLES, fullgraph=False),
    "check": lambda: pb.check_traceability(Scaled(), SAMPLES),
    "prepare": lambda: pb.prepare_model(Scaled().eval(), inputs=SAMPLES),
    "fix": lambda: pb.fix(Branch().eval(), SAMPLES),
    "quantize": lambda: pb.compile_model(
        Scaled().eval(),
        tracing_inputs=SAMPLES,
        calibration_inputs=SAMPLES,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=pb.QuantizationSettings(),
    ),
    "eager": lambda: _compiled(pb.EagerDeployment()),
    "onnxruntime": lambda: _compiled(pb.OnnxRuntimeDeployment()),
    "call": lambda: _compiled(pb.EagerDeployment())(SAMPLES[0]),
    "compare": lambda: pb.compare({"a": Scaled().eval(), "b": Scaled().eval()}, SAMPLES, rounds=0),
}

BROKEN = [
    ("trace", "prepbench.capture.modules.graph_builder", "GraphBuilder.create"),
    ("trace", "prepbench.capture.modules.value_run", "spell"),
    ("trace", "prepbench.capture.modules.value_run", "intercepted"),
    ("trace without inputs", "prepbench.capture.modules.tracer", "source_of_frame"),
    ("capture", "prepbench.capture.aten.attempts", "problem"),
    ("capture", "prepbench.capture.aten.export_program", "quiet_export"),
    ("capture with leaves", "prepbench.capture.aten.export_program", "quiet_export"),
    ("check", "prepbench.capture.modules.value_run", "spell"),
    ("trace", "prepbench.running.given_samples", "own_copy"),
    ("check", "prepbench.objects.copy", "Twin.of"),
    ("prepare", "prepbench.prepare.verify", "compare_on"),
    ("prepare", "prepbench.prepare.trace", "record_steps"),
    ("fix", "prepbench.fixes.proof", "outcome"),
    ("quantize", "prepbench.compile.quantize_program", "insert_observers"),
    ("eager", "prepbench.targets.eager", "EagerTarget.lower"),
    ("onnxruntime", "prepbench.targets.onnx.export", "_export"),
    ("onnxruntime", "prepbench.targets.onnxruntime", "open_session"),
    ("call", "prepbench.targets.eager", "EagerRuntime.run"),
    ("compare", "prepbench.measure.scores", "own_copy"),
]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    import importlib

    def take_away(home: str, name: str) -> None:
        owner: Any = importlib.import_module(home)
        *parts, last = name.split(".")
        for part in parts:
            owner = getattr(owner, part)
        text = "import torch\ndef call(*args, **kwargs):\n    return torch._no_such_part"
        assert hasattr(owner, last)
        monkeypatch.setattr(owner, last, written_as_ours(text)["call"])

    return take_away


@pytest.mark.parametrize(("call", "home", "name"), BROKEN, ids=[f"{c}: {n}" for c, _, n in BROKEN])
def test_a_defect_in_a_room_is_told_as_ours(
    call: str, home: str, name: str, broken: Callable[[str, str], None]
) -> None:
    broken(home, name)
    with pytest.raises(InternalError) as caught:
        CALLS[call]()
    assert "prepbench itself failed at" in str(caught.value)
    assert "_no_such_part" in str(caught.value)


def _missing_part(*args: Any, **kwargs: Any) -> Any:
    return written_as_ours("import torch\ndef f():\n    return torch._no_such_part")["f"]()


def test_a_job_tells_it() -> None:
    with pytest.raises(InternalError, match="_no_such_part"):
        Job(_missing_part).result()


def test_the_bench_tells_it() -> None:
    card = error_card(raised(_missing_part), leaf_wrap=False)
    assert card.text.startswith("prepbench itself failed at made_")
    assert "AttributeError" in card.text
    assert "developers of prepbench" in card.details


def test_the_command_line_tells_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "machine", _missing_part)
    monkeypatch.setattr(info, "_abilities", lambda: {"none": dict})
    assert main(["info"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: prepbench itself failed at made_")
    assert "was unexpected" not in said


# -- errors of a model stay its own


class Narrow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)


def _helper(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(x, x)  # type: ignore[arg-type]


class Helped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _helper(x)


class Misspelled(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return self.weigth * x


class OfTorch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate([x])  # type: ignore[arg-type]


class Lengths(nn.Module):
    def forward(self, x: torch.Tensor) -> int:
        return len(3)  # type: ignore[arg-type]


THEIRS = [
    nn.Sequential(nn.Linear(4, 8), nn.Linear(3, 2)),
    nn.Sequential(nn.Conv2d(3, 3, 3)),
    Narrow(),
    Helped(),
    Misspelled(),
    OfTorch(),
    Lengths(),
]


@pytest.mark.parametrize("model", THEIRS, ids=lambda model: type(model).__name__)
def test_errors_of_a_model_are_its_own(model: nn.Module) -> None:
    for call in (pb.capture, pb.fix, lambda model, inputs: pb.prepare_model(model, inputs=inputs)):
        with pytest.raises((CaptureError, InputError), match=r"itself raises on inputs\[0\]"):
            call(model, SAMPLES)
    failures = pb.recursive_trace(model).failures
    assert all(failure.kind for failure in failures)


@pytest.mark.parametrize("model", THEIRS, ids=lambda model: type(model).__name__)
def test_errors_while_tracing_are_failures_of_the_model(model: nn.Module) -> None:
    tracer = pb.RobustTracer()
    tracer.trace(model, inputs=SAMPLES)
    assert tracer.failures
    assert all(isinstance(failure.remedy, str) for failure in tracer.failures.values())


def test_a_candidate_that_is_called_wrongly_is_told_so() -> None:
    with pytest.raises(InputError, match="candidate 'b' failed"):
        pb.compare({"a": nn.Linear(4, 2), "b": nn.Sequential(nn.Linear(5, 2))}, SAMPLES, rounds=0)
