"""Where liveness is shown: a file that is written now and then, an HTTP probe, a title."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ergon_framework.app.console import say
from ergon_framework.app.liveness import STALL_AFTER, LivenessState, Snapshot
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, describe
from ergon_framework.ports.clock import Clock
from ergon_framework.storage.secure_files import Folder, open_file

logger = logging.getLogger("ergon.app")


class Periodic:
    """Calls ``act`` every so many seconds in a daemonic thread, from ``with`` to its end.

    What ``act`` raises is logged once, under the name ``what``; the next tick comes all the same.
    """

    def __init__(
        self, what: str, every: float, act: Callable[[], None], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._what = what
        self._every = every
        self._act = act
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = clock.signal(self._lock)
        self._is_over = False
        self._has_failed = False

    def __enter__(self) -> Self:
        self._clock.spawn("ergon-ticker", self._run)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._is_over = True
            self._wake.notify_all()

    def _run(self) -> None:
        while self._sleep():
            try:
                self._act()
            except Exception as error:
                if not self._has_failed:
                    logger.warning("%s failed; said once: %s", self._what, describe(error))
                self._has_failed = True

    def _sleep(self) -> bool:
        until = self._clock.now() + self._every
        with self._lock:
            while not self._is_over and self._clock.now() < until:
                self._wake.wait(until)
            return not self._is_over


WRITE_INTERVAL = 5.0
"""Seconds between two writes."""
MAX_AGE = 30.0
"""Seconds after which a file is too old to mean anything."""
_MAX_BYTES = 64 * 1024


@contextmanager
def liveness_file(
    path: Path,
    task: str,
    snapshot: Callable[[], Snapshot],
    *,
    every: float = WRITE_INTERVAL,
) -> Iterator[None]:
    """Keep the file up to date; it says ``stopped`` when the run is over."""
    writer = _Writer(path, task)
    try:
        writer.write(snapshot())
    except OSError as error:
        raise ConfigurationError(
            f"the liveness file {path} cannot be written: {error.strerror}",
            remedy="name a file in a directory that exists and may be written to",
        ) from error
    try:
        with Periodic("the liveness file", every, lambda: writer.write(snapshot())):
            yield
    finally:
        writer.finish(replace(snapshot(), state=LivenessState.STOPPED, in_flight=0))


class _Writer:
    """Replaces the file as a whole, so that no reader ever sees half of it."""

    def __init__(self, path: Path, task: str) -> None:
        self._path = path
        self._task = task
        self._lock = threading.Lock()
        self._is_finished = False

    def write(self, snapshot: Snapshot) -> None:
        with self._lock:
            if not self._is_finished:
                self._replace(snapshot)

    def finish(self, snapshot: Snapshot) -> None:
        """The last word. A disk that fails at the end must not turn a good run into a bad one."""
        with self._lock:
            # A tick that is waiting for the lock must not write over the last state.
            self._is_finished = True
            try:
                self._replace(snapshot)
            except OSError:
                return

    def _replace(self, snapshot: Snapshot) -> None:
        document = {
            "task": self._task,
            "pid": os.getpid(),
            **snapshot.to_dict(),
            "written_at": round(time.time(), 3),
        }
        beside = f".{self._path.name}.{os.getpid()}.{secrets.token_hex(4)}"
        with Folder.open(self._path.parent, follow=True) as folder:
            fd = folder.open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                with open(fd, "w", encoding="utf-8") as file:
                    file.write(json.dumps(document) + "\n")
                # Not synced: after a restart of the machine it is too old to mean anything.
                folder.replace(beside, self._path.name)
            except BaseException:
                with suppress(OSError):
                    folder.unlink(beside)
                raise


def read_liveness(path: Path, max_age: float = MAX_AGE) -> tuple[bool, dict[str, Any]]:
    """Whether the process that writes the file is live, and its last state or why it is unknown."""
    try:
        with open(open_file(path, os.O_RDONLY), "rb") as file:
            document = json.loads(file.read(_MAX_BYTES))
        snapshot = Snapshot.from_dict(document)
        age = max(0.0, time.time() - float(document["written_at"]))
    except FileNotFoundError:
        return False, {"state": "unknown", "reason": f"there is no file {path}"}
    except OSError as error:
        return False, {"state": "unknown", "reason": f"cannot read {path}: {error.strerror}"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return False, {"state": "unknown", "reason": f"{path} is no liveness file"}
    view = {**document, "age": round(age, 1)}
    if age > max_age:
        return False, {**view, "reason": f"written {age:.0f} s ago, {max_age:g} s are allowed"}
    return snapshot.is_live, view


LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LivenessOutputs:
    """What was asked for."""

    file: Path | None = None
    port: int | None = None
    host: str = LOOPBACK
    stall_after: float = STALL_AFTER

    @property
    def is_wanted(self) -> bool:
        """Whether there is any output. Without one, the engine need not build notices."""
        return self.file is not None or self.port is not None

    @contextmanager
    def of(self, task: str, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        """Publish until the end of the block."""
        with ExitStack() as stack:
            if self.file is not None:
                stack.enter_context(liveness_file(self.file, task, snapshot))
            if self.port is not None:
                from ergon_framework.app.probe import probe_server  # brings a web server

                port = stack.enter_context(probe_server(self.host, self.port, snapshot))
                say(f"probes on http://{self.host}:{port}/live and /ready")
            yield
