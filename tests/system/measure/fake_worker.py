"""A stand-in for ``prepbench.measure.worker`` that misbehaves on request: ``fake_worker.py MODE NAME ORDER_LOG``."""

import json
import os
import sys
import time

mode, name, log = sys.argv[1:]


def note(event: str) -> None:
    with open(log, "a") as file:
        file.write(json.dumps([name, event, os.getpid()]) + "\n")


def answer(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


note("start")
if mode == "crash":
    sys.stderr.write("loading the shards\nModuleNotFoundError: No module named 'secret_ops'\n")
    raise SystemExit(3)
if mode == "babble":
    answer("hello")
if mode == "sleep":
    time.sleep(120)
answer({"ready": True})
for line in sys.stdin:
    request = json.loads(line)
    note(f"{request['settle']}+{request['calls']}")
    if mode == "crash later":
        os.abort()
    if mode == "sleep later":
        time.sleep(120)
    answer({"times_ns": [int(mode)] * request["calls"]})
