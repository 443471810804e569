"""One version of a program's executor: it says which handlers it has, and runs those.

Arguments: a file with the names of its handlers, one in each line, and what it says of them when it
is up: ``report``, ``slow`` (the same after a second), ``silent`` (nothing), or ``late`` (only when
it has read its first request).
"""

from __future__ import annotations

import json
import os
import select
import sys
from pathlib import Path


def report(handlers: list[str]) -> None:
    """Say that it is ready, and what it can run."""
    line = json.dumps({"ready": True, "handlers": handlers}) + "\n"
    os.write(int(os.environ["ERGON_READY_FD"]), line.encode())


def main(path: str, how: str) -> None:
    """Answer requests until the input ends."""
    handlers = Path(path).read_text(encoding="utf-8").split()
    if how == "slow":
        select.select([], [], [], 1.0)
    if how in ("report", "slow"):
        report(handlers)
    for line in sys.stdin:
        request = json.loads(line)
        if how == "late":
            report(handlers)
            how = "report"
        answer = {"job_id": request["job_id"], "status": "success", "result": path}
        if request["function_name"] not in handlers:
            answer |= {"status": "error", "error_type": "handler_not_found"}
        print(json.dumps(answer), flush=True)


main(*sys.argv[1:])
