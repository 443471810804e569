"""An executor that takes several requests at once and answers them in the order it likes.

It reports readiness after the file named by its first argument is there, if one is named.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def flood(start: str) -> None:
    """Begin a line that has no end."""
    os.write(1, start[:-1].encode())
    while True:
        os.write(1, b" " * 65536)


def main() -> None:
    """Collect requests until as many are there as may be in flight, then answer backwards."""
    if len(sys.argv) > 1:
        while not Path(sys.argv[1]).exists():
            os.sched_yield()
    os.write(int(os.environ["ERGON_READY_FD"]), b'{"ready": true}\n')
    most = int(os.environ["ERGON_MAX_IN_FLIGHT"])
    held: list[dict[str, Any]] = []
    for line in sys.stdin:
        held.append(json.loads(line))
        has_crashed = any(Path(each["args"][0]).exists() for each in held if each["args"])
        if len(held) < most and not has_crashed and held[0]["function_name"] != "alone":
            continue
        if any(each["function_name"] == "crash" for each in held):
            Path(held[0]["args"][0]).touch()
            os._exit(9)
        for each in reversed(held):
            status = "great" if each["function_name"] == "bad_status" else "success"
            answer = {"job_id": each["job_id"], "status": status, "result": len(held)}
            if each["function_name"] == "endless_line":
                flood(json.dumps(answer))
            print(json.dumps(answer), flush=True)
        held.clear()


if __name__ == "__main__":
    main()
