# ruff: noqa: D102 - the base class says what each method does
"""Huey in its two forms, which differ in where they keep what they know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from jobs_parts import client


class Peer(client.Peer):
    """Clears, starts and counts through Huey's own storage."""

    def __init__(self, huey: Any, task: Any, path: str, processes: int) -> None:
        self._huey = huey
        self._task = task
        self._path = path
        self._processes = processes

    def reset(self) -> None:
        self._huey.storage.flush_all()

    def workers(self) -> list[list[str]]:
        arguments = [sys.executable, "-m", "huey.bin.huey_consumer", self._path, "--quiet"]
        arguments += [
            "--workers",
            str(self._processes),
            "--worker-type",
            "process",
            "--no-periodic",
        ]
        # Where it has to poll, it polls often; its default is ten times a second at most.
        return [[*arguments, "--delay", "0.001", "--max-delay", "0.01", "--backoff", "1.2"]]

    def enqueue(self, number: int) -> None:
        self._task(number)

    def waiting(self) -> int:
        return int(self._huey.pending_count())

    def recorded(self) -> int:
        return int(self._huey.result_count())


def file() -> str:
    """Where the SQLite form keeps its jobs."""
    return str(Path(client.url()) / "huey.db")
