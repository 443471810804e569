"""A node in a thread of the test's own process, and the command line beside it."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.node.node import run_node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.cli import invoke

PATIENCE = 30.0


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, captured: Any) -> None:
        self.code = code
        self.out: str = captured.out
        self.err: str = captured.err

    @property
    def json(self) -> Any:
        """The one document on the standard output."""
        return json.loads(self.out)


class BoundaryCommands:
    """The command line, and the URL of a node if there is one."""

    def __init__(
        self,
        place: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        url: str = "",
    ) -> None:
        self.place = place
        self.data = str(place / "data")
        self.url = url
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, typed: bytes = b"") -> Answer:
        """Run ``ergon boundary …`` without any node's address."""
        self._capsys.readouterr()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        return Answer(invoke(["boundary", *arguments]), self._capsys.readouterr())

    def ask(self, *arguments: str, typed: bytes = b"") -> Answer:
        """Run ``ergon boundary …`` against the node."""
        return self(*arguments, "--url", self.url, typed=typed)

    def append(self, *ids: str) -> None:
        """Facts of these ids."""
        lines = b"".join(message(each) + b"\n" for each in ids)
        assert self.ask("append", "--batch", "-", typed=lines).code == 0


def message(message_id: str, value: Any = 1, **envelope: Any) -> bytes:
    """The request of an append."""
    whole = {
        "message_id": message_id,
        "from_zone": "plant-a",
        "to_zone": "hq",
        "produced_at_unix_ms": 1_741_248_600_000,
        **envelope,
    }
    fact = {"subject": "batch:7", "predicate": "step_completed", "object_json": value}
    return json.dumps({"envelope": whole, "fact": fact}).encode()


@contextmanager
def running(settings: ZoneSettings, name: str = "plant-a") -> Iterator[str]:
    """A node in a thread; its address."""
    ready, listening = threading.Event(), []
    ends: list[BaseException] = []
    parts: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def told(address: str) -> None:
        listening.append(address)
        ready.set()

    async def main() -> None:
        stop = asyncio.Event()
        parts.append((asyncio.get_running_loop(), stop))
        await run_node(name, settings, ready=told, stop=stop)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            ends.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="node")
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        if ends:
            raise ends[0]
        yield listening[0]
    finally:
        for loop, stop in parts:
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
    assert not thread.is_alive()
