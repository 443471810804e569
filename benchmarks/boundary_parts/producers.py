"""Producers in this process: threads that append one fact after the other."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from comparison import ContestantError, Turn

from boundary_parts.group_commit import FileGroupCommit, SqliteGroupCommit
from boundary_parts.messages import FROM, Message, split_messages
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone

Append = Callable[[Message], object]


def run_producers(append: Append, parts: Sequence[Sequence[Message]]) -> Turn:
    """Let each thread append its part; the clock runs from the start of all to the end of all."""
    latencies: list[list[float]] = [[] for _ in parts]
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(parts) + 1)

    def produce(part: Sequence[Message], times: list[float]) -> None:
        barrier.wait()
        try:
            for message in part:
                began = time.perf_counter()
                append(message)
                times.append(time.perf_counter() - began)
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=produce, args=pair) for pair in zip(parts, latencies, strict=True)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    began, cpu_time = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    seconds, cpu_time = time.perf_counter() - began, time.process_time() - cpu_time
    if errors:
        raise ContestantError(str(errors[0]))
    every = [each for times in latencies for each in times]
    return Turn(len(every), seconds, every, cpu_time)


@contextmanager
def turn_folder(folder: Path) -> Iterator[Path]:
    """A folder for one turn."""
    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def new_zone(folder: Path) -> Iterator[LocalZone]:
    """A zone with nothing in it, gone at the end."""
    with turn_folder(folder) as path, LocalZone.open(FROM, ZoneSettings(data=str(path))) as zone:
        yield zone


def append_to(zone: LocalZone) -> Append:
    """The whole way: checks, canonical form, ledger, hash chain, row, commit."""
    append = zone.append
    return lambda message: append(message.envelope, message.fact)


def ours(folder: Path, producers: int, count: int) -> Turn:
    """A zone of its own for each turn."""
    parts = split_messages(count, producers)
    with new_zone(folder) as zone:
        turn = run_producers(append_to(zone), parts)
        head = zone.store.logs()[0].head
    if head != turn.count:
        raise ContestantError(f"{head} of {turn.count} facts are there")
    return turn


def bare_sqlite(folder: Path, producers: int, count: int) -> Turn:
    """Rows through a queue to one writer."""
    parts = split_messages(count, producers)
    with turn_folder(folder) as path:
        log = SqliteGroupCommit(path / "bare.db")
        try:
            return run_producers(lambda message: log.append(message.body), parts)
        finally:
            log.close()


def bare_file(folder: Path, producers: int, count: int) -> Turn:
    """Bytes through a queue to one writer."""
    parts = split_messages(count, producers)
    with turn_folder(folder) as path:
        log = FileGroupCommit(path / "bare.log")
        try:
            return run_producers(lambda message: log.append(message.body), parts)
        finally:
            log.close()


def direct_sqlite(folder: Path, _producers: int, count: int) -> Turn:
    """Rows by the only producer itself, each with a commit: no queue, no second thread."""
    (part,) = split_messages(count, 1)
    with turn_folder(folder) as path:
        connection = sqlite3.connect(
            path / "bare.db", isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("CREATE TABLE facts (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
            insert = "INSERT INTO facts (body) VALUES (?)"
            return run_producers(
                lambda message: connection.execute(insert, (message.body,)), [part]
            )
        finally:
            connection.close()
