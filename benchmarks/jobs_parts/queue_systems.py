"""The queue systems that take part, and the process in which the client of each one runs."""

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

from comparison import ContestantError

from jobs_parts import client, run_file
from jobs_parts.processes import StartedProcess, environment

OURS, BARE = "ours", "bare"
ANSWER = 60.0
"""Seconds a client has for an answer."""
STEP = 20_000
"""Jobs it adds between two answers while a queue is filled."""


@dataclass(frozen=True)
class QueueSystem:
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
    QueueSystem(OURS, "Ergon (SQLite)", "ours", "", 15_000, 6_000,
        ("drain", "enqueue", "enqueue-threads", "bulk", "latency"), has_cases=True),
    QueueSystem(BARE, "bare sqlite3", "bare_sqlite", "", 0, 9_000,
        ("enqueue", "enqueue-threads", "bulk")),
    QueueSystem("bare-keyed", "bare sqlite3, two keys", "bare_keyed", "", 0, 8_000,
        ("enqueue", "bulk")),
    QueueSystem("redis-list", "raw Redis list", "redis_list", "redis", cases=("latency",)),
    QueueSystem("celery", "Celery (Redis)", "celery_peer", "redis", 1_200, 1_000),
    QueueSystem("dramatiq", "Dramatiq (Redis)", "dramatiq_peer", "redis", 3_000, 4_000),
    QueueSystem("rq", "RQ (Redis)", "rq_peer", "redis", 400, 1_000),
    QueueSystem("huey-sqlite", "Huey (SQLite)", "huey_sqlite", "", 2_000, 4_000),
    QueueSystem("huey-unsynced", "Huey (SQLite, not synced)", "huey_unsynced", "", 5_000,
        cases=("drain",)),
    QueueSystem("huey-redis", "Huey (Redis)", "huey_redis", "redis", 4_000, 8_000),
    QueueSystem("faststream", "FastStream (Redis)", "faststream_peer", "redis", 3_000, 4_000),
    QueueSystem("taskiq", "taskiq (Redis)", "taskiq_peer", "redis", 2_500, 3_000),
    QueueSystem("pgqueuer", "pgqueuer (PostgreSQL)", "pgqueuer_peer", "postgres", 10_000, 2_000,
        ("drain", "enqueue", "bulk", "latency")),
)  # fmt: skip


class ClientProcess:
    """A contestant with its client process."""

    def __init__(self, system: QueueSystem, case: str, url: str, folder: Path) -> None:
        self.system = system
        self.folder = folder
        self.folder.mkdir()
        self._settings = {client.URL: url or str(self.folder), client.CASE: case, **system.settings}
        self._log = (self.folder / "client.log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603 - these parts
            [sys.executable, "-m", "jobs_parts.client", system.module],
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

    def call(self, do: str, **fields: Any) -> Any:
        """Let the client do something, and wait for its answer."""
        input_, output = self._process.stdin, self._process.stdout
        if input_ is None or output is None:
            raise ContestantError("the client has no pipes")
        try:
            input_.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            input_.flush()
        except BrokenPipeError:
            raise ContestantError(f"the client has ended: {self._log_tail()}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(ANSWER):
                raise ContestantError(f"the client did not {do} within {ANSWER:g} seconds")
        line = output.readline()
        if not line:
            raise ContestantError(f"the client has ended: {self._log_tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantError(answer["error"])
        return answer["value"]

    def fill(self, first: int, count: int) -> None:
        """Add so many jobs, numbered from ``first``, in steps that each have their answer."""
        for start in range(first, first + count, STEP):
            self.call("fill", first=start, count=min(STEP, first + count - start))
        self.call("after_fill")

    def start_workers(self, run_path: Path, *, timestamps: bool = False) -> list[StartedProcess]:
        """Its workers, with a file for what its handlers leave."""
        more = {run_file.TIMESTAMPS: "1"} if timestamps else {}
        env = environment(**self._settings, **{run_file.PATH: str(run_path)}, **more)
        log = self.folder / "workers.log"
        return [StartedProcess(command, env, log) for command in self.call("workers")]

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

    def _log_tail(self) -> str:
        text = (self.folder / "client.log").read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-2:])[-300:]
