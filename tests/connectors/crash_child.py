"""Works through an inbox in a child process and dies at a failpoint: at each one, at each pass.

    python crash_child.py FOLDER

For every failpoint and every number of passes through it a child is forked, works in a folder of
its own, and kills itself with SIGKILL there. It keeps a diary of what it was promised.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from ergon_framework.connector.jsonl import JsonlConnector, append_file
from ergon_framework.connector.jsonl.offsets import JournalLimits
from ergon_framework.ports.transaction import Transaction

FILES = {"progress": "in/.ergon/progress.jsonl", "dead_letters": "in/.ergon/dead_letters.jsonl"}
POINTS = [
    *(f"{label}.{moment}" for label in FILES for moment in ("before_write", "written", "synced")),
    *("progress.rewriting", "progress.rewritten", "progress.renamed"),
    *("outbox.before_write", "outbox.written", "outbox.synced"),
    *("progress.torn", "dead_letters.torn", "outbox.torn"),
]


def prepare(home: Path) -> None:
    """An inbox of two files with ten transactions, a malformed line and a blank one."""
    lines = [json.dumps({"transaction_id": f"t{n}", "payload": n}) for n in range(10)]
    lines[3:3] = ["rubbish", ""]
    (home / "in").mkdir(parents=True)
    (home / "in" / "a.jsonl").write_text("\n".join(lines[:8]) + "\n")
    (home / "in" / "b.jsonl").write_text("\n".join(lines[8:]))  # no newline at the end


def arm(home: Path, point: str, passes: int) -> None:
    """Die at the given pass through ``point``; "torn" leaves half a line behind first."""
    wanted = point.replace("torn", "before_write")
    left = passes

    def die(name: str) -> None:
        nonlocal left
        left -= name == wanted
        if name == wanted and left == 0:
            if point.endswith("torn"):
                label = point.partition(".")[0]
                path = home / FILES.get(label, "out/part-00000001.jsonl")
                with path.open("ab") as file:
                    file.write(b'{"file": "a.jsonl", "transaction_id": "t1", "li')
            os.kill(os.getpid(), signal.SIGKILL)

    append_file.failpoint = die


def work(home: Path) -> None:
    """Consume everything: every fourth is nacked, every third released once, the rest sent on."""
    diary = os.open(home / "diary", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    released = set()

    def note(verb: str, transaction: Transaction) -> None:
        os.write(diary, f"{verb} {transaction.transaction_id}\n".encode())

    early = JournalLimits(compact_after=2)  # compact early and often
    connector = JsonlConnector(home / "in", home / "out", journal=early)
    while batch := connector.fetch_transactions(3):
        for each in batch:
            if each.payload % 3 == 0 and each.payload not in released:
                released.add(each.payload)
                connector.release(each)
                continue
            note("began", each)
            if each.payload % 4 == 0:
                connector.nack(each, ValueError("four"))
                note("nacked", each)
                continue
            connector.dispatch_transactions([each])
            note("sent", each)
            connector.ack(each)
            note("acked", each)
    connector.close()


def crash(home: Path, point: str, passes: int) -> int:
    """Fork a child that works and dies; returns the signal it died of, 0 when it did not."""
    prepare(home)
    child = os.fork()
    if child == 0:
        arm(home, point, passes)
        work(home)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path) -> None:
    """Every failpoint, with one pass more each time until nobody dies of it."""
    # The page cache survives SIGKILL: waiting for the disk would show nothing.
    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda fd: None)
    for point in POINTS:
        passes = 1
        while (code := crash(folder / point / str(passes), point, passes)) == -signal.SIGKILL:
            passes += 1
        if code != 0 or passes == 1:
            sys.exit(f"{point}: died {passes - 1} times, then ended with {code}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
