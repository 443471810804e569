"""Does the rows of a folder until it is killed: ``python reader_child.py FOLDER DIARY``."""

from __future__ import annotations

import os
import sys
import threading

from ergon_framework.connector import from_url


def main(folder: str, diary: str) -> None:
    """Note each row before and after it is settled."""
    notes = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with from_url(f"files://{folder}?settle=0&ids=id") as rows:
        while batch := rows.fetch_transactions(7):
            for row in batch:
                os.write(notes, f"began {row.transaction_id}\n".encode())
                rows.ack(row)
                os.write(notes, f"acked {row.transaction_id}\n".encode())
                sys.stdout.write("x\n")
                sys.stdout.flush()
                threading.Event().wait(0.002)  # killed here more often than elsewhere


if __name__ == "__main__":
    main(*sys.argv[1:])
