"""One candidate of one entry, in a process of its own: makes it, scores it, then answers with times.

``python -m tests.board.worker ENTRY CANDIDATE RESULT``: writes what it found to the file RESULT.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import numpy as np
import torch

from tests.benchmarks.rounds import serve
from tests.board.candidates import CANDIDATES
from tests.board.networks import NETWORKS


def main() -> None:
    """Be the worker that the arguments name."""
    name, candidate, file = sys.argv[1:4]
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    entry, result = NETWORKS[name], Path(file)
    try:
        task = entry.load()
        made = CANDIDATES[candidate](entry, task)
        rows = np.asarray(task.parts([made.run(call) for call in task.test]), np.float64)
    except Exception as error:  # a candidate that fails is a row that says so
        traceback.print_exc()
        said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        result.write_text(json.dumps({"failed": said[:300]}))
        raise SystemExit(1) from error
    found = {"rows": rows.tolist(), "megabytes": made.megabytes, "seconds": made.seconds, "remark": made.remark}
    result.write_text(json.dumps(found))
    call = made.timed or made.run
    serve(lambda: call(task.timed))


if __name__ == "__main__":
    main()
