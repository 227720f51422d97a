"""What verification says is short, however many tensors a cache has."""

from __future__ import annotations

from prepbench.capture.aten.verification import AxesReport, AxisResult, by_role, condition_lines, dynamic_text
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.document.model import Failure, SourceLine, alike_failures

LINE = SourceLine("cache.py", 12, "torch.cat([keys, new])")


def keys(layer: int) -> str:
    return f"cache[{layer}].keys.shape[0]"


def results(layers: int, status: str = "bounded") -> tuple[AxisResult, ...]:
    """As of a cache in which each layer asks that its batch is that of the first."""
    made = []
    for layer in range(layers):
        pair = tuple(sorted((keys(0), keys(layer))))
        turned = pair if layer % 2 else pair[::-1]
        conditions = (SizeCondition(f"{turned[0]} always equals {turned[1]}", pair, LINE),) if layer else ()
        made.append(AxisResult(f"cache[{layer}].keys", 0, "batch", status, (4,), (5,), (0, None), "Guard", conditions))  # type: ignore[arg-type]
    return tuple(made)


def test_axes_that_behave_alike_are_one_line_with_each_reason_once() -> None:
    lines = repr(AxesReport(results(24), 2, 0.0)).splitlines()
    assert lines[1].startswith("  cache[*].keys.shape[0] (24) (batch): bounded: ")
    same = "cache[*].keys.shape[0] always equals cache[*].keys.shape[0]"
    assert lines[2] == f"    {same} (cache.py:12: torch.cat([keys, new])), 23 times"
    assert len(lines) == 3


def test_what_sizes_of_one_symbol_fulfil_anyway_is_not_said() -> None:
    lines = repr(AxesReport(results(24, "holds"), 2, 0.0)).splitlines()
    assert lines[1:] == ["  cache[*].keys.shape[0] (24) (batch): holds (sizes tried: 4)"]


def test_conditions_on_caches_are_told_by_role() -> None:
    names = {"cache[0].keys.shape[2]": "past", "x.shape[1]": "sequence", "mask.shape[1]": "total", "y.shape[1]": "s"}

    def told(text: str) -> str:
        return by_role(SizeCondition(text, (), LINE), names).text

    assert told("-mask.shape[1] + cache[0].keys.shape[2] + x.shape[1] <= 0") == "past + sequence <= total"
    assert told("cache[0].keys.shape[2] + x.shape[1] == x.shape[1] + cache[0].keys.shape[2]").count("past") == 2
    assert told("cache[0].keys.shape[2] is at least 2") == "past is at least 2"
    assert told("2*cache[0].keys.shape[2] <= 7") == "2*past <= 7"
    assert told("mask.shape[1] always equals x.shape[1] + 1") == "mask.shape[1] always equals x.shape[1] + 1"


def test_an_axis_that_differs_has_a_line_of_its_own() -> None:
    other = AxisResult("cache[3].keys", 0, "batch", "wrong", (4,), (), (0, None), "differs", wrong=(5,))
    mixed = (*results(3), other)
    text = repr(AxesReport(mixed, 2, 0.0))
    assert "  cache[*].keys.shape[0] (3) (batch): bounded" in text
    assert "  cache[3].keys.shape[0] (batch): wrong" in text


def test_conditions_of_different_lines_stay_apart() -> None:
    two = [SizeCondition("x[0].shape[0] is 2", ("x[0].shape[0]",), LINE)]
    two.append(SizeCondition("x[1].shape[0] is 2", ("x[1].shape[0]",), None))
    two.append(SizeCondition("x[1].shape[1] is 2", ("x[1].shape[1]",), LINE))
    assert len(condition_lines(two)) == 3


def test_dynamic_axes_are_told_by_symbol() -> None:
    one = [Axis("x", 0, (2, 3), True, "batch"), Axis("x", 2, (4, 5), True, "height")]
    assert dynamic_text(one) == "x.shape[0] (batch), x.shape[2] (height)"
    many = [*one, *(Axis(f"c[{i}]", 0, (2, 3), True, "batch") for i in range(6))]
    assert dynamic_text(many) == "x.shape[0], c[*].shape[0] (6) (batch); x.shape[2] (height)"


def test_all_tensors_of_an_object_are_one_place() -> None:
    cache = [f"past.layers[{i}].{name}" for i in range(3) for name in ("keys", "values")]
    axes = [Axis(path, dim, (2, 3), True, "batch" if dim == 0 else "past") for path in ["x", *cache] for dim in (0, 2)]
    assert dynamic_text(axes) == "x.shape[0], past.*.shape[0] (6) (batch); x.shape[2], past.*.shape[2] (6) (past)"
    other = [axis for axis in axes if (axis.path, axis.dim) != ("past.layers[1].values", 2)]
    text = dynamic_text([*other, Axis("past.layers[1].values", 2, (4, 5), True, "other")])
    assert "past.*.shape[0] (6) (batch)" in text
    assert "past.layers[0].*.shape[2] (2), past.layers[1].keys.shape[2], past.layers[2].*.shape[2] (2) (past)" in text


def test_one_reason_of_many_modules_is_said_once() -> None:
    failures = [Failure(f"layers.{i}.gate", "Gate", "branch", "TraceError", f"message {i}", LINE) for i in range(27)]
    failures.append(Failure("head", "Head", "branch", "TraceError", "message", LINE))
    assert [failure.fqn for failure in alike_failures(failures)] == ["layers.*.gate (27)", "head"]
    assert alike_failures(failures[-1:]) == failures[-1:]
