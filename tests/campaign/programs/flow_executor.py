"""An executor on the standard library for the steps of flows: it writes down what it runs.

    python flow_executor.py BOOK

A step returns its label, which is its last argument, and what it was given before that. ``flaky``
fails at its first attempt. ``fails`` fails for good until an operator has written that it may not.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

NAP, LONG_NAP = 0.002, 0.3
"""Seconds that a step takes, and a long one, whose lease is renewed."""
LONG = 37
"""One flow of so many has long steps."""
PLANTED = "planted_failure"


def answer(request: dict[str, Any], path: str) -> dict[str, Any]:
    """What becomes of one attempt."""
    *given, label = request["args"]
    number = label.partition(".")[0]
    threading.Event().wait(NAP if int(number) % LONG else LONG_NAP)
    if request["function_name"] == "flaky" and request["context"]["attempt"] == 1:
        return {"status": "retry", "error_message": "at its first attempt"}
    if request["function_name"] == "fails" and not os.path.exists(f"{path}.repaired/{number}"):  # noqa: PTH110
        return {"status": "error", "error_type": PLANTED, "error_message": "for good"}
    return {"status": "success", "result": [label, *given]}


def main(path: str) -> None:
    """Write down what is run, then answer."""
    book = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for line in sys.stdin:
        request = json.loads(line)
        job_id, attempt = request["job_id"], request["context"]["attempt"]
        os.write(book, f"ran {job_id} {os.getpid()} {attempt}\n".encode())
        print(json.dumps({"job_id": job_id, **answer(request, path)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
