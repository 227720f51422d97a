from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, StorageError
from prepbench.inputs import Sample
from prepbench.jobs import report_nothing
from prepbench.measure.artifacts import PARAMETERS, Artifact
from prepbench.measure.latency import interleaved, measure_latency
from prepbench.measure.process import (
    LatencyError,
    LatencyTimeoutError,
    WorkerProcess,
    environment,
    worker_command,
)
from prepbench.measure.run import compare
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.measure.worker import timed_calls
from prepbench.results.speed_up import Reference

MILLISECOND = 1_000_000


def fake_measure(fakes, tmp_path, modes, *, rounds=3, timeout=60.0, progress=report_nothing):
    artifacts = {name: fakes.artifact(mode, name) for name, mode in modes.items()}
    candidates = {name: nn.Identity() for name in modes}
    sample = Sample((torch.ones(2, 3),))
    return measure_latency(candidates, artifacts, sample, tmp_path, rounds=rounds, timeout=timeout, progress=progress)


def test_rounds_take_turns_after_all_have_warmed_up(fake_workers, tmp_path):
    modes = {"slow": str(50 * MILLISECOND), "fast": str(25 * MILLISECOND), "middle": str(35 * MILLISECOND)}
    result = fake_measure(fake_workers, tmp_path, modes)
    # warm-up: 3 calls each, then as many as fill 0.3 s; after that 0.1 s / 50 ms = 2 calls a turn for everyone
    warm_up = [("slow", "1+3"), ("slow", "0+3"), ("fast", "1+3"), ("fast", "0+9"), ("middle", "1+3"), ("middle", "0+5")]
    assert fake_workers.requests() == warm_up + [("slow", "1+2"), ("fast", "1+2"), ("middle", "1+2")] * 3
    assert result["slow"].times_ms == (50.0,) * 6
    assert result["fast"].times_ms == (25.0,) * 6
    assert {latency.timed_in for latency in result.values()} == {"own process"}
    assert len({pid for _, event, pid in fake_workers.events() if event == "start"} - {os.getpid()}) == 3
    fake_workers.assert_all_ended()


def test_a_slow_candidate_gets_one_call_a_turn_and_a_fast_one_no_more_than_200():
    class Recorded:
        def __init__(self, ns):
            self.ns, self.asked = ns, []

        def times_ns(self, settle, calls):
            self.asked.append((settle, calls))
            return [self.ns] * calls

    slow, fast = Recorded(5000 * MILLISECOND), Recorded(1000)
    interleaved({"slow": slow}, 2, report_nothing)
    interleaved({"fast": fast}, 1, report_nothing)
    assert slow.asked == [(1, 3), (1, 1), (1, 1)]
    assert fast.asked == [(1, 3), (0, 197), (1, 200)]


def test_a_candidate_that_cannot_be_saved_is_timed_here_in_the_same_rounds(fake_workers, tmp_path):
    calls = []

    def slow_function(x):
        calls.append(len(fake_workers.requests()))
        time.sleep(0.1)
        return x

    artifacts = {
        "saved": fake_workers.artifact(str(100 * MILLISECOND), "saved"),
        "local": Artifact(None, 4, PARAMETERS, "eager", "could not be captured"),
    }
    candidates = {"saved": nn.Identity(), "local": slow_function}
    result = measure_latency(
        candidates, artifacts, Sample((torch.ones(1),)), tmp_path, rounds=3, timeout=60.0, progress=report_nothing
    )
    assert result["local"].timed_in == "this process"
    assert result["saved"].timed_in == "own process"
    assert min(result["local"].times_ms) >= 100
    # one warm-up request to the worker, then one more before each local turn
    assert sorted(set(calls)) == [1, 2, 3, 4]


def test_no_rounds_start_no_process(fake_workers, tmp_path):
    result = fake_measure(fake_workers, tmp_path, {"a": "1000"}, rounds=0)
    assert (result["a"].times_ms, result["a"].timed_in) == ((), "not timed")
    assert not fake_workers.log.exists()


def test_a_crash_while_loading_shows_the_error_output(fake_workers, tmp_path):
    with pytest.raises(LatencyError, match=r"candidate 'int8'.*exit code 3 while it loaded the model") as caught:
        fake_measure(fake_workers, tmp_path, {"float": str(MILLISECOND), "int8": "crash"})
    assert "No module named 'secret_ops'" in str(caught.value)
    assert "rounds=0" in str(caught.value)
    fake_workers.assert_all_ended()


def test_a_crash_while_running_names_the_signal(fake_workers, tmp_path):
    with pytest.raises(LatencyError, match=r"'int8'.*signal SIGABRT while it ran the model"):
        fake_measure(fake_workers, tmp_path, {"float": str(MILLISECOND), "int8": "crash later"})
    fake_workers.assert_all_ended()


def test_an_unreadable_answer_is_told(fake_workers, tmp_path):
    with pytest.raises(LatencyError, match=r"'int8'.*answered.*hello"):
        fake_measure(fake_workers, tmp_path, {"int8": "babble"})
    fake_workers.assert_all_ended()


@pytest.mark.parametrize(("mode", "doing"), [("sleep", "loaded the model"), ("sleep later", "ran the model")])
def test_a_silent_worker_is_given_up(fake_workers, tmp_path, mode, doing):
    start = time.monotonic()
    with pytest.raises(LatencyTimeoutError, match=f"'int8'.*no answer within 1.5 s while it {doing}") as caught:
        fake_measure(fake_workers, tmp_path, {"float": str(MILLISECOND), "int8": mode}, timeout=1.5)
    assert isinstance(caught.value, TimeoutError)
    assert time.monotonic() - start < 15
    fake_workers.assert_all_ended()


@pytest.mark.parametrize("error", [pb.Cancelled("enough"), KeyboardInterrupt()], ids=["Cancelled", "KeyboardInterrupt"])
@pytest.mark.parametrize(
    ("mode", "stage"), [("sleep", "start"), (str(MILLISECOND), "time"), ("sleep later", "warm up")]
)
def test_cancelling_ends_all_workers(fake_workers, tmp_path, error, mode, stage):
    seen = []

    def cancel(step):
        seen.append(step)
        # the third report of a stage: while a silent worker is waited for, or in the next round
        if [s.stage for s in seen].count(stage) == 3:
            raise error

    with pytest.raises(type(error)):
        fake_measure(fake_workers, tmp_path, {"float": str(MILLISECOND), "int8": mode}, progress=cancel)
    fake_workers.assert_all_ended()


def left_over(folder):
    return list(folder.glob("prepbench-compare-*"))


def test_workers_end_when_their_parent_is_killed(fake_workers, tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from prepbench.measure.process import WorkerProcess\n"
        "worker = WorkerProcess('m', sys.argv[2:], Path(sys.argv[1]), threads=1, timeout=60, heartbeat=lambda: None)\n"
        "worker.wait_until_ready(); os.kill(os.getpid(), 9)"
    )
    command = fake_workers.command("1000@m", tmp_path, 1)
    parent = subprocess.run([sys.executable, "-c", program, str(tmp_path / "log"), *command], timeout=120)
    assert parent.returncode == -9
    [(_, _, pid)] = fake_workers.events()
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_temporary_folders_are_removed_when_a_worker_fails(exported, temporary_folders, monkeypatch):
    given, seen = torch.ones(2, 4), []

    def failing(*arguments):
        seen.extend(left_over(temporary_folders))
        return [sys.executable, "-c", "raise SystemExit(9)"]

    monkeypatch.setattr("prepbench.measure.latency.worker_command", failing)
    model = exported(nn.Linear(4, 3), given)
    with pytest.raises(LatencyError, match="exit code 9"):
        compare({"m": model}, [given])
    assert len(seen) == 1
    assert left_over(temporary_folders) == []


def test_two_real_processes(exported, temporary_folders):
    given = torch.randn(2, 256)
    wide = nn.Sequential(*(nn.Linear(256, 256) for _ in range(24)))
    small, large = exported(nn.Linear(256, 256), given), exported(wide, given)
    result = compare({"large": large, "small": small}, [(given, given)], metric=lambda output, target: 1.0, rounds=2)
    rows = {row.name: row for row in result.rows}
    assert [row.timed_in for row in result.rows] == ["own process", "own process"]
    assert len(rows["large"].times_ms) == len(rows["small"].times_ms) > 0
    assert all(0 < row.p50_ms <= row.p90_ms for row in result.rows)
    assert rows["large"].interval_ms[0] <= rows["large"].p50_ms <= rows["large"].interval_ms[1]
    assert rows["small"].reference == Reference("large", rows["large"].p50_ms, rows["large"].interval_ms)
    assert rows["large"].reference is None
    assert rows["large"].size_bytes > 24 * 256 * 257 * 4 > 10 * rows["small"].size_bytes
    assert "2 interleaved rounds" in result.caption
    assert left_over(temporary_folders) == []


def test_a_module_that_cannot_be_captured_is_timed_here_and_says_so():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * self.weight if float(x.sum()) > 0 else x - self.weight

    result = compare({"branches": Branches()}, [torch.ones(2, 8)], rounds=1)
    [row] = result.rows
    assert (row.timed_in, row.size_of, row.size_bytes) == ("this process", "parameters and buffers", 32)
    assert row.note.startswith("could not be captured")
    assert f"branches: {row.note}" in repr(result)


def test_inputs_that_need_pickle_keep_the_timing_here(exported):
    class Odd:
        pass

    def function(x, odd):
        return x

    result = compare({"f": function}, [(torch.ones(2), Odd())], rounds=1)
    assert result["f"].timed_in == "this process"
    assert "Odd" in result["f"].note


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3),
        torch.tensor(3),
        torch.randn(4, 6)[::2, ::3],
        torch.ones(1, 2).expand(3, 2),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3).to(torch.bfloat16),
        torch.tensor([True, False]),
    ],
    ids=["floats", "number", "strided", "expanded", "channels last", "bfloat16", "booleans"],
)
def test_inputs_travel_without_pickle(tmp_path, tensor):
    sample = Sample((tensor, [None, 2.5, (tensor, "text")]), {"flag": True, "nested": {"b": tensor, "a": 1}})
    save_sample(sample, tmp_path)
    found = load_sample(tmp_path)
    assert torch.equal(found.args[0], tensor)
    assert found.args[0].dtype == tensor.dtype
    assert found.args[1][:2] == [None, 2.5]
    assert found.args[1][2][1] == "text"
    assert list(found.kwargs) == ["flag", "nested"]
    assert found.kwargs["flag"] is True
    if tensor.dim() == 4:
        assert found.args[0].is_contiguous(memory_format=torch.channels_last)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


def test_peak_memory_is_not_that_of_the_process_that_started_it():
    held = bytearray(600_000_000)
    held[::4096] = b"1" * len(held[::4096])
    code = "from prepbench.measure.worker import peak_bytes; print(peak_bytes())"
    peak = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 5_000_000 < peak < len(held)


def test_values_that_json_does_not_have_are_refused(tmp_path):
    with pytest.raises(InputError, match="dtype"):
        save_sample(Sample((torch.float32,)), tmp_path)


def test_timed_calls_leave_out_the_settling_ones_and_count_every_call():
    durations = iter([0.05, 0.0, 0.02])
    times = timed_calls(lambda: time.sleep(next(durations)), settle=1, calls=2)
    assert len(times) == 2
    assert times[0] < 20 * MILLISECOND <= times[1] < 50 * MILLISECOND


def test_workers_share_the_thread_setting_and_do_not_import_from_the_current_folder(tmp_path):
    assert environment(3)["OMP_NUM_THREADS"] == environment(3)["MKL_NUM_THREADS"] == "3"
    command = worker_command(tmp_path, tmp_path, 3)
    assert command[0] == sys.executable
    assert "-P" in command
    assert command[-1] == "3"


def test_a_log_that_cannot_be_opened_is_a_storage_error(tmp_path, monkeypatch):
    def full(self, *args):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="no space left on device"):
        WorkerProcess("m", ["true"], tmp_path / "log", threads=1, timeout=1, heartbeat=lambda: None)


def test_an_interrupt_while_a_worker_starts_leaves_no_process(fake_workers, tmp_path, monkeypatch):
    start, started = WorkerProcess.__init__, []

    def interrupted(self, *args, **kwargs):
        start(self, *args, **kwargs)
        started.append(self.pid)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(WorkerProcess, "__init__", interrupted)
    # a shell that starts a job in the background has it ignore Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            fake_measure(fake_workers, tmp_path, {"float": str(MILLISECOND), "int8": str(MILLISECOND)})
    finally:
        signal.signal(signal.SIGINT, before)
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
