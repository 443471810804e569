"""Who takes part, and the parent's side of the conversation with a contestant's client."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparison import FailedError

from jobs_parts import client, run_file
from jobs_parts.processes import Started, environment

OURS, BARE = "ours", "bare"
ANSWER = 60.0
"""Seconds a client has for an answer."""
STEP = 20_000
"""Jobs it adds between two answers while a queue is filled."""


@dataclass(frozen=True)
class Who:
    """A contestant. Paces are rough jobs per second, only to give its turns a fitting length."""

    key: str
    name: str
    module: str
    server: str = ""
    drain_pace: int = 2_000
    enqueue_pace: int = 2_000
    cases: tuple[str, ...] = ("drain", "enqueue", "latency")
    has_cases: bool = False  # its settings depend on the case
    settings: Mapping[str, str] = field(default_factory=dict)  # variables of its processes


ALL = (
    Who(OURS, "Ergon (SQLite)", "ours", "", 15_000, 6_000,
        ("drain", "enqueue", "enqueue-threads", "bulk", "latency"), has_cases=True),
    Who(BARE, "bare sqlite3", "bare_sqlite", "", 0, 9_000,
        ("enqueue", "enqueue-threads", "bulk")),
    Who("bare-keyed", "bare sqlite3, two keys", "bare_keyed", "", 0, 8_000, ("enqueue", "bulk")),
    Who("redis-list", "raw Redis list", "redis_list", "redis", cases=("latency",)),
    Who("celery", "Celery (Redis)", "celery_peer", "redis", 1_200, 1_000),
    Who("dramatiq", "Dramatiq (Redis)", "dramatiq_peer", "redis", 3_000, 4_000),
    Who("rq", "RQ (Redis)", "rq_peer", "redis", 400, 1_000),
    Who("huey-sqlite", "Huey (SQLite)", "huey_sqlite", "", 2_000, 4_000),
    Who("huey-unsynced", "Huey (SQLite, not synced)", "huey_unsynced", "", 5_000,
        cases=("drain",)),
    Who("huey-redis", "Huey (Redis)", "huey_redis", "redis", 4_000, 8_000),
    Who("faststream", "FastStream (Redis)", "faststream_peer", "redis", 3_000, 4_000),
    Who("taskiq", "taskiq (Redis)", "taskiq_peer", "redis", 2_500, 3_000),
    Who("pgqueuer", "pgqueuer (PostgreSQL)", "pgqueuer_peer", "postgres", 10_000, 2_000,
        ("drain", "enqueue", "bulk", "latency")),
)  # fmt: skip


class Seat:
    """A contestant with its client process."""

    def __init__(self, who: Who, case: str, url: str, folder: Path) -> None:
        self.who = who
        self.folder = folder
        self.folder.mkdir()
        self._settings = {client.URL: url or str(self.folder), client.CASE: case, **who.settings}
        self._log = (self.folder / "client.log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603 - these parts
            [sys.executable, "-m", "jobs_parts.client", who.module],
            env=environment(**self._settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self.folder,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its client's process."""
        return self._process.pid

    def ask(self, do: str, **fields: Any) -> Any:
        """Let the client do something, and wait for its answer."""
        given, said = self._process.stdin, self._process.stdout
        if given is None or said is None:
            raise FailedError("the client has no pipes")
        try:
            given.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            given.flush()
        except BrokenPipeError:
            raise FailedError(f"the client has ended: {self._last_words()}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(said, selectors.EVENT_READ)
            if not selector.select(ANSWER):
                raise FailedError(f"the client did not {do} within {ANSWER:g} seconds")
        line = said.readline()
        if not line:
            raise FailedError(f"the client has ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise FailedError(answer["error"])
        return answer["value"]

    def fill(self, first: int, count: int) -> None:
        """Add so many jobs, numbered from ``first``, in steps that each have their answer."""
        for start in range(first, first + count, STEP):
            self.ask("fill", first=start, count=min(STEP, first + count - start))
        self.ask("filled")

    def start_workers(self, marked: Path, *, stamps: bool = False) -> list[Started]:
        """Its workers, with a file for what its handlers leave."""
        more = {run_file.STAMPS: "1"} if stamps else {}
        env = environment(**self._settings, **{run_file.PATH: str(marked)}, **more)
        log = self.folder / "workers.log"
        return [Started(command, env, log) for command in self.ask("workers")]

    def close(self) -> None:
        """End the client."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        text = (self.folder / "client.log").read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-2:])[-300:]
