"""How far a whole run is: the fraction never goes back, and the log tells each stage once."""

from __future__ import annotations

from prepbench.bench.status import COMPARING, COMPILING, TARGET, RunProgress, StatusOfRuns
from prepbench.jobs import Progress


def test_a_run_of_two_targets_goes_from_nothing_to_all() -> None:
    now = [0.0]
    run = RunProgress(2, clock=lambda: now[0])
    seen = []
    for target, name in enumerate(("one", "other")):
        run.begin(target, name)
        for stage in COMPILING:
            for done in (0, 1):
                now[0] += 1
                run(Progress(stage, done, 1))
                seen.append(run.fraction)
    assert 0.3 < run.fraction < 0.5, "processes start, and time is measured, after all compiles"
    for stage in COMPARING:
        run(Progress(stage, 1, 1))
        seen.append(run.fraction)
    assert seen == sorted(seen)
    assert run.fraction == 1
    assert run.remaining == 0
    assert [line.split("  ")[1] for line in run.log].count("Reading the model") == 2


def test_what_took_long_before_counts_more() -> None:
    usual, known = RunProgress(1), RunProgress(1, {"capture": 9.0, "lower": 1.0})
    for run in (usual, known):
        run(Progress("capture", 1, 1))
    assert known.fraction > usual.fraction


def test_nothing_is_guessed_at_the_beginning() -> None:
    run = RunProgress(1, clock=lambda: 0.0)
    run(Progress("capture", 0, 1))
    assert run.remaining == -1


def test_the_rest_is_told_by_a_counter_or_by_earlier_runs_alone() -> None:
    now = [0.0]
    known, unknown = (RunProgress(1, seconds, clock=lambda: now[0]) for seconds in ({"capture": 4.0, "lower": 4.0}, {}))
    for run in (known, unknown):
        run(Progress("capture", 1, 1))
    now[0] = 2
    assert known.remaining == unknown.remaining == -1, "too early"
    now[0] = 4
    assert known.remaining > 0
    assert unknown.remaining == -1
    unknown(Progress("calibrate", 0, 4))
    now[0] = 8
    unknown(Progress("calibrate", 2, 4))
    assert unknown.remaining == -1, "four calibration samples tell nothing of the time that measuring takes"


def test_without_earlier_runs_the_rest_never_grows_at_a_steady_pace() -> None:
    now, seen = [0.0], []
    run = RunProgress(1, clock=lambda: now[0])
    for stage, seconds in {
        "capture": 30.0,
        "lower": 40.0,
        "accuracy": 1.0,
        "save": 2.0,
        "start": 9.0,
        "time": 20.0,
    }.items():
        for done in range(11):
            run(Progress(stage, done, 10))
            seen.append(run.remaining)
            now[0] += seconds / 10 if done < 10 else 0
    told = [rest for rest in seen if rest >= 0]
    assert told == sorted(told, reverse=True)
    assert max(told) <= 20


def test_stages_are_said_in_words_with_the_target_that_is_built_for() -> None:
    said: list[str] = []
    status = StatusOfRuns()
    status.listen(lambda now: said.append(now.stage))
    status.begin("int8", ("ONNX Runtime", "OpenVINO"), {})
    for target in (0, 1):
        status.step(Progress(TARGET, target, 2, ("ONNX Runtime", "OpenVINO")[target]))
        status.step(Progress("lower", 0, 1))
    assert said == [
        "Starting", "Starting", "Building for ONNX Runtime, 1 of 2", "Building for OpenVINO, 2 of 2",
    ]  # fmt: skip


def test_a_stage_that_takes_longer_than_its_share_tells_its_own_pace() -> None:
    now = [0.0]
    run = RunProgress(1, clock=lambda: now[0])
    for stage in COMPILING:
        now[0] += 2
        run(Progress(stage, 1, 1))
    for done in range(31):
        run(Progress("time", done, 60))
        now[0] += 1
    now[0] -= 1
    assert run.remaining == 30
    run(Progress("time", 60, 60))
    assert run.remaining == 0
