"""``pb.fix``: what it changes, how it shows it, how it is taken away, and that the user's model stays as it is."""

from __future__ import annotations

import copy
import errno
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, StorageError
from prepbench.fixes import proof
from prepbench.fixes.proof import trials
from prepbench.fixes.results import write_sources
from prepbench.fixes.syntax import SourceText
from prepbench.inputs import Sample
from tests.compile.fixes.zoo import branches, places
from tests.compile.fixes.zoo.all import CASES
from tests.compile.fixes.zoo.branches import Gate
from tests.compile.fixes.zoo.effects import ChecksIds
from tests.compile.fixes.zoo.habits import EarlyExit
from tests.compile.fixes.zoo.loops import HalvesUntilSmall
from tests.compile.fixes.zoo.places import InClosure, InHelper, Inherited, SharedClass
from tests.fingerprint import fingerprint

SAMPLES = [torch.randn(size, 10, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]
NEGATIVE = [-sample.abs() for sample in SAMPLES]


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.allclose(one(x), other(x)) for x in [*SAMPLES, *NEGATIVE])


def test_the_model_is_left_alone_and_the_copy_shares_its_tensors() -> None:
    model = Gate()
    before = fingerprint(model)
    fixed = pb.fix(model, SAMPLES)
    assert fingerprint(model) == before
    assert type(model) is Gate
    assert fixed.passed
    assert fixed.model is not model
    assert fixed.model.linear.weight is model.linear.weight  # type: ignore[union-attr]
    assert equal(fixed.model, model)
    assert pb.capture(fixed.model, SAMPLES).leaves == ()


def test_the_diff_has_the_lines_of_the_file_and_keeps_comments() -> None:
    (fix,) = pb.fix(Gate(), SAMPLES).applied
    assert "         # the gate opens for positive batches" in fix.diff
    assert "+        return torch.where(x.sum() > 0, self.linear(x), torch.zeros_like(x))" in fix.diff
    lines = Path(branches.__file__).read_text().splitlines()
    assert lines[fix.line - 1].strip() == "if x.sum() > 0:"
    start = int(fix.diff.split("@@ -")[1].split(",")[0])
    assert lines[start - 1] == fix.diff.splitlines()[3][1:]


class ChecksWhatNeverHappens(nn.Module):
    def forward(self, x):
        if x.sigmoid().min() < -5:
            raise ValueError("never")
        y = x * 2
        return y * int(x.sum())


def test_a_fix_names_the_line_that_it_changes() -> None:
    fixed = pb.fix(ChecksWhatNeverHappens(), SAMPLES)
    (fix,), (draft,) = fixed.applied, fixed.remaining
    lines = Path(__file__).read_text().splitlines()
    assert lines[fix.line - 1].strip() == "return y * int(x.sum())"
    assert draft.failure.source is not None
    assert lines[draft.failure.source.line - 1].strip() == "if x.sigmoid().min() < -5:"


def test_a_class_that_several_modules_share_is_fixed_once() -> None:
    fixed = pb.fix(SharedClass(), [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 8, 8)])
    assert len(fixed.applied) == 1
    assert fixed.passed


@pytest.mark.parametrize("make", [Gate, Inherited, InClosure])
def test_the_cell_runs_as_printed(make: Any) -> None:
    model = make()
    fixed = pb.fix(model, SAMPLES)
    own = copy.deepcopy(model)
    exec(compile(fixed.code(), "<cell>", "exec"), {"model": own})
    assert equal(own, model)
    assert pb.capture(own, SAMPLES).leaves == ()


def test_the_cell_puts_a_helper_into_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "soft_clip", places.soft_clip)  # put back afterwards
    model = InHelper()
    fixed = pb.fix(model, SAMPLES)
    assert fixed.passed
    exec(compile(fixed.code(), "<cell>", "exec"), {"model": model})
    assert pb.capture(model, SAMPLES).leaves == ()


SOURCE = """import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):  # stays
        if x.sum() > 0:
            return x * 2
        return -x
"""


def imported(folder: Path, text: str = SOURCE) -> ModuleType:
    path = folder / "written_model.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("written_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["written_model"] = module
    spec.loader.exec_module(module)
    return module


def test_write_changes_the_file_and_only_on_request(tmp_path: Path) -> None:
    module = imported(tmp_path)
    fixed = pb.fix(module.Gate(), SAMPLES)
    path = tmp_path / "written_model.py"
    assert path.read_text() == SOURCE
    assert fixed.write() == [path] or [Path(p) for p in fixed.write()] == [path]
    assert path.read_text() == SOURCE.replace(
        "        if x.sum() > 0:\n            return x * 2\n        return -x\n",
        "        return torch.where(x.sum() > 0, x * 2, -x)\n",
    )


def test_write_refuses_a_file_that_changed(tmp_path: Path) -> None:
    fixed = pb.fix(imported(tmp_path).Gate(), SAMPLES)
    path = tmp_path / "written_model.py"
    path.write_text(SOURCE + "# more\n")
    with pytest.raises(StorageError, match="has changed since"):
        fixed.write()
    assert path.read_text() == SOURCE + "# more\n"


def test_several_files_are_written_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"part_{number}.py" for number in range(3)]
    for path in paths:
        path.write_text("x = 1\n")
    sources = [SourceText(str(path), "x = 1\n", f"x = {path.stem[-1]}2\n") for path in paths]
    calls, synced = [], os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="part_2"):
            write_sources(sources)
    assert [path.read_text() for path in paths] == ["x = 1\n"] * 3
    assert sorted(tmp_path.iterdir()) == paths
    assert write_sources(sources) == paths
    assert [path.read_text() for path in paths] == ["x = 02\n", "x = 12\n", "x = 22\n"]


def test_write_refuses_a_file_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = pb.fix(imported(tmp_path).Gate(), SAMPLES)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write to every file
    with pytest.raises(StorageError, match="read-only"):
        fixed.write()
    assert (tmp_path / "written_model.py").read_text() == SOURCE


def test_a_file_that_changed_since_it_was_imported_is_told(tmp_path: Path) -> None:
    model = imported(tmp_path).Gate()
    (tmp_path / "written_model.py").write_text(SOURCE.replace("> 0", "> 1"))
    fixed = pb.fix(model, SAMPLES)
    (draft,) = fixed.remaining
    assert "has changed since it was imported" in draft.reason


def test_source_that_cannot_be_found_is_told() -> None:
    scope: dict[str, Any] = {}
    exec(compile(SOURCE, "<nowhere>", "exec"), scope)
    (draft,) = pb.fix(scope["Gate"](), SAMPLES).remaining
    assert "not available" in draft.reason or "not known" in draft.reason


class Never(nn.Module):
    def forward(self, x):
        if x.sum() > 0 and x.sum() < 0:
            return x + 1
        return x


def test_a_side_that_no_sample_takes_makes_it_a_draft() -> None:
    fixed = pb.fix(Never(), SAMPLES)
    (draft,) = fixed.remaining
    assert not fixed.applied
    assert "no sample takes the side" in draft.reason
    assert "torch" in draft.diff


class OtherShape(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return torch.zeros(10)


def test_another_shape_on_one_side_makes_it_a_draft() -> None:
    both = [SAMPLES[0].abs(), -SAMPLES[0].abs()]
    (draft,) = pb.fix(OtherShape(), both).remaining
    assert draft.fix is None
    assert "shape" in draft.reason


class Writes(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x += 1
        return x


def test_a_write_to_the_callers_tensor_is_kept_or_told() -> None:
    fixed = pb.fix(Writes(), SAMPLES)
    given, expected = SAMPLES[0].abs(), SAMPLES[0].abs()
    fixed.model(given)
    Writes()(expected)
    assert torch.equal(given, expected)


def test_failures_and_reports_carry_the_fix() -> None:
    report = pb.check_traceability(Gate(), SAMPLES)
    assert [fix.kind for fix in report.fixes] == ["a branch on a tensor becomes torch.where"]
    assert any(failure.fix is not None and failure.fix.diff for failure in report.failures)
    assert "torch.where" in report._repr_mimebundle_()["text/html"]


def test_it_is_shown_with_cards() -> None:
    page = pb.fix(Gate(), SAMPLES)._repr_mimebundle_()["text/html"]
    assert "before" in page
    assert "Proof" in page


def test_a_model_that_does_not_fail_stays(recwarn: Any) -> None:
    fixed = pb.fix(nn.Linear(10, 2), SAMPLES)
    assert fixed.passed
    assert fixed.applied == ()
    assert fixed.diff == ""


@pytest.mark.parametrize("bounds", [-1, 2.5, True, {"n": "x"}])
def test_bounds_are_numbers_of_iterations(bounds: Any) -> None:
    with pytest.raises(InputError, match="bounds must be"):
        pb.fix(nn.Linear(10, 2), SAMPLES, bounds=bounds)


def test_a_check_raises_what_it_raised_and_asserts_in_the_graph() -> None:
    ids = [torch.randint(0, 10, (size, 5)) for size in (2, 3)]
    model = ChecksIds()
    fixed = pb.fix(model, ids)
    with pytest.raises(IndexError, match="outside the vocabulary"):
        fixed.model(torch.full((2, 5), 10))
    with pytest.raises(RuntimeError):
        pb.capture(fixed.model, ids).program.module()(torch.full((2, 5), 10))


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(bool((x > -50).all()))
        torch._assert(x.sum() < 1000, "too much")
        return x * 2


def test_a_called_check_of_values_stays_one() -> None:
    samples = [torch.rand(rows, 3) for rows in (2, 4)]
    model = Checked()
    with pytest.raises(pb.errors.CaptureError):  # torch's strict export would leave it out in silence
        pb.capture(model, samples, strict=True)
    fixed = pb.fix(model, samples)
    assert fixed.passed
    program = pb.capture(fixed.model, samples).program.module()
    assert torch.equal(program(samples[0]), samples[0] * 2)
    for bad in (torch.full((5, 3), -60.0), torch.full((5, 3), 300.0)):
        with pytest.raises((RuntimeError, AssertionError)):
            model(bad)
        with pytest.raises(RuntimeError):
            program(bad)


def test_every_case_of_the_zoo_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES.values()}) == len(CASES)


def test_a_return_inside_of_a_loop_keeps_what_it_returns() -> None:
    torch.manual_seed(0)
    model = EarlyExit()
    fixed = pb.fix(model, SAMPLES)
    assert fixed.passed
    assert equal(fixed.model, model)
    assert "is None else torch.where(" in fixed.diff


def test_a_loop_without_an_end_on_made_up_values_is_told_by_what_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "SECONDS_OF_DERIVED", 60.0)  # infinity is never small
    begin = time.perf_counter()
    assert pb.fix(HalvesUntilSmall(), SAMPLES, bounds=3).passed
    assert time.perf_counter() - begin < 60


def test_no_call_is_tried_twice() -> None:
    samples = [Sample((x,), index=i) for i, x in enumerate(SAMPLES)]
    floats = [trial.sample.args[0] for trial in trials(samples) if trial.state is None]
    assert not any(torch.equal(a, b) for i, a in enumerate(floats) for b in floats[:i] if a.shape == b.shape)
    assert all(trial.state is None for trial in trials(samples, has_state=False))


class Guarded(nn.Module):
    """The second question is for more than one row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 0 or x[1, 0] > 0:
            return x + 1
        return x


def test_a_change_is_tried_at_sizes_that_no_sample_has() -> None:
    samples = [torch.ones(2, 3), -torch.ones(3, 3), torch.tensor([[-1.0, 0, 0], [1, 0, 0]])]
    fixed = pb.fix(Guarded(), samples)
    torch.testing.assert_close(fixed.model(torch.ones(1, 3)), torch.full((1, 3), 2.0))
    assert not fixed.applied
    assert "IndexError" in fixed.remaining[0].reason


class Matching(nn.Module):
    def forward(self, x: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        match kind.item():
            case 1:
                return x + 1
            case 2 | 3:
                return x * 2
            case _:
                return x - 1


def test_a_match_statement_has_a_reason() -> None:
    fixed = pb.fix(Matching(), [(torch.ones(2, 3), torch.tensor(1)), (torch.ones(3, 3), torch.tensor(2))])
    assert fixed.remaining[0].reason
    torch.testing.assert_close(fixed.model(torch.ones(2, 3), torch.tensor(3)), torch.full((2, 3), 2.0))
