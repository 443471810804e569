"""An executor on the standard library that writes down every job it runs, once per run.

python ledger.py BOOK
"""

from __future__ import annotations

import json
import os
import sys
import threading

NAPS = {"any": 0.01, "slow": 0.3}
"""Seconds that a handler takes; the slow one has its lease renewed."""


def main() -> None:
    """Write the job's id down, then answer."""
    book = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for line in sys.stdin:
        request = json.loads(line)
        os.write(book, f"ran {request['job_id']} {os.getpid()}\n".encode())
        threading.Event().wait(NAPS[request["function_name"]])
        print(json.dumps({"job_id": request["job_id"], "status": "success"}), flush=True)


if __name__ == "__main__":
    main()
