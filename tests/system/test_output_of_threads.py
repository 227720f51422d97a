"""Output that one thread redirects while another one prints."""

import subprocess
import sys

_PRINTS = """
import io, sys, threading, time
from prepbench.patching import output_here

ended = threading.Event()

def redirects():
    while not ended.is_set():
        with output_here(io.StringIO()):
            pass

sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=redirects) for _ in range(2)]
for thread in threads:
    thread.start()
end, lines = time.monotonic() + 3, 0
while time.monotonic() < end:
    print("line", lines, "of", "many", "words")
    lines += 1
ended.set()
print("done", lines)
"""


def test_a_print_never_ends_the_process() -> None:
    # Python's print does not hold its stream: where it is freed meanwhile, the process ends with signal 11
    done = subprocess.run([sys.executable, "-c", _PRINTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, last = done.stdout.splitlines()
    assert lines == [f"line {number} of many words" for number in range(len(lines))]
    assert last == f"done {len(lines)}"
