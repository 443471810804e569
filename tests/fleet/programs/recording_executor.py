"""An executor on the standard library that writes down when each job begins and ends.

    python recording_executor.py BOOK

``note`` takes as long as its argument says, ``hold`` until the file it names is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any


def work(name: str, arguments: list[Any]) -> None:
    """Do what the handler does."""
    if name == "note":
        threading.Event().wait(arguments[0] if arguments else 0.0)
    while name == "hold" and not Path(arguments[0]).exists():
        threading.Event().wait(0.02)


def main() -> None:
    """One job at a time."""
    book = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    who = f"{os.environ.get('FLEET_WORKER', '')} {os.getpid()}"
    for line in sys.stdin:
        request = json.loads(line)
        os.write(book, f"begin {request['job_id']} {who}\n".encode())
        work(request["function_name"], request["args"])
        os.write(book, f"end {request['job_id']} {who}\n".encode())
        print(json.dumps({"job_id": request["job_id"], "status": "success"}), flush=True)


if __name__ == "__main__":
    main()
