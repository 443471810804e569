"""Adds rows to a recorder, spills or replays them, until it ends or dies at a failpoint.

    ERGON_FAILPOINTS=providers.spill.written=kill@2 python recorder_child.py WHAT FOLDER

It says on standard output what was done: ``kept ID`` once ``write_now`` has returned.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import cast

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the fakes of the tests

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import ProviderStore, RecordBatch
from ergon_framework.providers.recorder import Recorder, close_recorders, recorder_of
from ergon_framework.providers.store_urls import open_store
from tests.providers.recorder_fakes import WAIT, letter, row, rows

ROWS = 6


class DurableStore:
    """A file with a line for each time a row was sent; ``is_away`` makes it fail.

    No database: one that is open while its process forks would be a test of its own.
    """

    def __init__(self, path: Path, *, is_away: bool = False) -> None:
        self._path = path
        self.is_away = is_away
        self._path.touch()

    def now(self) -> float:
        return time.time()

    def record(self, batch: RecordBatch) -> None:
        if self.is_away:
            raise StoreUnavailableError("the store is away")
        ids = [each.id for each in batch.attempts]
        ids += [each.dead_letter_id for each in batch.letters]
        with open(self._path, "ab", buffering=0) as file:
            file.write("".join(f"{each}\n" for each in ids).encode())

    def sent(self) -> dict[str, int]:
        """How often each row was sent."""
        return Counter(self._path.read_text(encoding="ascii").splitlines())


def say(text: str) -> None:
    """One line, written at once."""
    os.write(1, f"{text}\n".encode())


def open_recorder(folder: Path, *, is_away: bool = False) -> Recorder:
    """A recorder on the file of this test, with small batches."""
    store = DurableStore(folder / "store.txt", is_away=is_away)
    return Recorder(cast("ProviderStore", store), spill=folder / "spill", batch=2)


def spill(folder: Path) -> None:
    """Dead letters while the store is away, one by one."""
    recorder = open_recorder(folder, is_away=True)
    for n in range(ROWS):
        batch = RecordBatch([row(f"r{n}", outcome="dead_letter")], [letter(f"d{n}", {"n": n})])
        assert recorder.write_now(batch)
        say(f"kept {n}")
    recorder.close(0.0)


def limit(folder: Path) -> None:
    """The same with room for little more than three of them."""
    recorder = open_recorder(folder, is_away=True)
    sys.dont_write_bytecode = True  # it would be cut off, and nobody told
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    for n in range(ROWS):
        is_safe = recorder.write_now(
            RecordBatch([row(f"r{n}")], [letter(f"d{n}", {"n": "x" * 400})])
        )
        say(f"{'kept' if is_safe else 'refused'} {n}")
    recorder.add(rows(3, "queued"))
    recorder.close(WAIT)
    say(f"lost {recorder.stats().lost_rows}")


def replay(folder: Path) -> None:
    """Write what others left."""
    recorder = open_recorder(folder)
    assert recorder.flush(WAIT)
    recorder.drain()
    say(f"replayed {recorder.stats().replayed_rows}")


def end(folder: Path) -> None:
    """Add rows and come to an end."""
    open_recorder(folder).add(rows(ROWS))


def fork(folder: Path) -> None:
    """Fork while the thread runs and rows wait; both add more, each writes its own."""
    recorder = open_recorder(folder)
    recorder.add(rows(1, "before"))
    recorder.flush(WAIT)
    recorder.add(rows(ROWS, "queued"))
    pid = os.fork()
    recorder.add(rows(ROWS, "parent" if pid else "child"))
    if not pid:
        assert recorder.flush(WAIT)
        assert recorder.stats().written_rows == ROWS
        close_recorders(WAIT)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def forks(folder: Path) -> None:
    """Fork again and again while a real database is being written, and write in all of them."""
    store = open_store(f"sqlite:///{folder}/work.db")
    recorder = recorder_of(store)
    pids = []
    for n in range(ROWS):
        recorder.add(rows(100, f"parent{n}-"))
        pid = os.fork()
        if not pid:
            recorder.add(rows(100, f"child{n}-"))
            is_written = recorder.flush(WAIT)
            close_recorders(WAIT)
            os._exit(0 if is_written else 1)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * ROWS
    assert recorder.flush(WAIT)
    say(f"written {len(store.attempts_of('c1'))}")


def _work(folder: Path) -> None:
    open_recorder(folder).add(rows(ROWS, "worker"))


def processes(folder: Path) -> None:
    """A child of multiprocessing, which runs no exit hooks."""
    open_recorder(folder).add(rows(ROWS, "parent"))
    process = multiprocessing.get_context("fork").Process(target=_work, args=(folder,))
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def hold(folder: Path) -> None:
    """Spill, fork a child that stays, and say so; the parent is killed by the test."""
    recorder = open_recorder(folder, is_away=True)
    assert recorder.write_now(RecordBatch(rows(ROWS)))
    if not os.fork():
        say("holding")  # by the child: until it has run, it has its parent's descriptors
        sys.stdin.buffer.read()  # until the test closes its end
        os._exit(0)
    os.waitpid(-1, 0)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
