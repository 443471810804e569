"""Supervised processes: starting them, the pipes to and from them, and running all of them."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO

from ergon_framework.app.console import ExitCode, say
from ergon_framework.app.liveness import Snapshot
from ergon_framework.app.liveness_outputs import LivenessOutputs
from ergon_framework.app.outcome import RunOutcome
from ergon_framework.app.signals import SignalListener, exit_within
from ergon_framework.app.supervisor import (
    Events,
    Heartbeat,
    ProcessSpec,
    SignalReceived,
    Slot,
    Supervisor,
    SupervisorEvent,
    Tell,
    WorkerEnded,
    WorkerReady,
    worker_specs,
)
from ergon_framework.core.process_restart import RestartRule
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, ErgonError

logger = logging.getLogger("ergon.supervisor")

MAX_MESSAGE = 1024 * 1024
MAX_IDS = 1000
FINAL_READ_TIMEOUT = 5.0
"""Seconds to go on reading what a worker that is gone has said, on a machine that is busy."""


class ProcessChild:
    """A worker process and the two threads that listen to it."""

    def __init__(self, worker: int, process: subprocess.Popen[bytes], status: BinaryIO) -> None:
        self._worker = worker
        self._process = process
        self._status = status
        self._outcome: Mapping[str, Any] | None = None

    def listen(self, events: Events) -> None:
        """Turn what it says, and its end, into events."""
        reader = SYSTEM_CLOCK.spawn(f"ergon-hears-{self._worker}", lambda: self._read(events))

        def wait() -> None:
            code = self._process.wait()
            # Bounded, for a grandchild may hold the pipe open long after the worker's end.
            reader.join(FINAL_READ_TIMEOUT)
            # After the reader: the outcome is the last message, and decides whether a restart makes
            # sense.
            events.put(WorkerEnded(self._worker, code, self._outcome))

        SYSTEM_CLOCK.spawn(f"ergon-waits-{self._worker}", wait)

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            # The whole group: what the worker has started must not outlive it.
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()

    def _read(self, events: Events) -> None:
        with self._status as status:
            while line := status.readline(MAX_MESSAGE):
                message = _message(line)
                if message.get("kind") == "beat":
                    events.put(Heartbeat(self._worker, Snapshot.from_dict(message)))
                elif message.get("kind") == "ready":
                    events.put(WorkerReady(self._worker, str(message.get("told", ""))))
                elif message.get("kind") == "outcome":
                    self._outcome = message


class Spawner:
    """Starts workers that end when this process does."""

    def __init__(
        self,
        command: Callable[[ProcessSpec, str], Sequence[str]],
        posts: Sequence[ProcessSpec],
        events: Events,
        *,
        keeps_stdout: bool = False,
    ) -> None:
        self._command = command
        self._posts = posts
        self._events = events
        self._stdout = 2 if keeps_stdout else None
        # Nobody ever writes to it. When this process dies, however it dies, the system closes its
        # end and every worker reads the end of file.
        self._lifeline, self._held = os.pipe()

    def start(self, worker: int) -> ProcessChild:
        """Start one. ``command`` is called with its post and the value of ``--supervised``."""
        post = self._posts[worker]
        read_end, write_end = os.pipe()
        environ = {
            **os.environ,
            "ERGON_WORKER_ID": str(post.number),
            "ERGON_WORKERS": str(post.of),
        }
        try:
            process = subprocess.Popen(  # noqa: S603 - our own program, started again
                self._command(post, f"{self._lifeline}:{write_end}"),
                stdin=subprocess.DEVNULL,
                stdout=self._stdout,
                env=environ,
                pass_fds=(self._lifeline, write_end),
                # A group of its own: a Ctrl-C in the terminal goes to the supervisor alone, which
                # stops workers in order.
                process_group=0,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            # The worker has its copy. Kept open here, the end of its messages would never be seen.
            os.close(write_end)
        child = ProcessChild(worker, process, os.fdopen(read_end, "rb"))
        child.listen(self._events)
        return child

    def close(self) -> None:
        """Close the lifeline."""
        os.close(self._lifeline)
        os.close(self._held)


class SupervisorLink:
    """A worker's side: the parent it belongs to."""

    def __init__(self, supervised: str) -> None:
        try:
            self._lifeline, self._status = (int(fd) for fd in supervised.split(":"))
            for fd in (self._lifeline, self._status):
                os.set_inheritable(fd, False)  # what this worker starts must not hold them open
        except (ValueError, OSError) as error:
            raise ConfigurationError(
                f"--supervised {supervised!r} names no open pipes",
                remedy="leave it out; it is for the worker processes of --workers",
            ) from error
        self._lock = threading.Lock()
        self.orphan_grace = 30.0
        """Seconds an orphan has to finish what it is doing."""

    def watch(self, leave: Callable[[int], Any] = os._exit) -> None:
        """Stop this process when its parent is gone, gracefully if possible."""

        def wait() -> None:
            with suppress(OSError):
                os.read(self._lifeline, 1)
            say("the supervisor is gone; this worker ends")
            # Armed before the signal: a handler of the user's may hang in what follows.
            exit_within(128 + signal.SIGTERM, self.orphan_grace, leave=leave)
            os.kill(os.getpid(), signal.SIGTERM)

        SYSTEM_CLOCK.spawn("ergon-lifeline", wait)

    def tell_beat(self, snapshot: Snapshot) -> None:
        """Send this worker's liveness to the supervisor."""
        self._tell({"kind": "beat", **snapshot.to_dict()})

    def tell_ready(self, told: str = "") -> None:
        """Tell the supervisor that this process is ready."""
        self._tell({"kind": "ready", "told": f"pid={os.getpid()} {told}".rstrip()})

    def tell_outcome(self, outcome: RunOutcome) -> None:
        """Send the outcome of this worker to the supervisor, with long lists of ids cut."""
        document = outcome.to_dict()
        report = document["report"] or {}
        for name in ("stranded", "duplicates"):
            if name in report:
                # The parent reads no line that is longer than MAX_MESSAGE.
                report[name] = report[name][:MAX_IDS]
        self._tell({"kind": "outcome", "is_complete": outcome.is_complete, **document})

    def _tell(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        with self._lock, suppress(OSError):  # a parent that is gone needs no answer
            while line:
                # A pipe may take a part of a long line; the lock keeps the parts of two threads
                # from mixing.
                line = line[os.write(self._status, line) :]


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        logger.warning("a worker said something that is not JSON")
        return {}
    return message if isinstance(message, dict) else {}


@dataclass(frozen=True, slots=True)
class WorkersOutcome:
    """How a run in several processes ended."""

    task: str
    exit_code: ExitCode
    restarts: int
    workers: Sequence[Slot]
    reason: ErgonError | None = None
    """Why the supervisor gave up, if it did."""

    @property
    def errors(self) -> list[Mapping[str, Any]]:
        """Why the supervisor gave up, then what each worker ended with, each message once."""
        found: list[Mapping[str, Any]] = [self.reason.to_dict()] if self.reason else []
        found += [slot.error for slot in self.workers if slot.error]
        return list({error["message"]: error for error in found}.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        return {
            "task": self.task,
            "exit_code": int(self.exit_code),
            "restarts": self.restarts,
            "report": total([_reports(slot) for slot in self.workers]),
            "workers": [
                {
                    "worker": slot.worker,
                    "exit_code": slot.code,
                    "restarts": len(slot.deaths),
                    "report": total([_reports(slot)]),
                }
                for slot in self.workers
            ],
            "errors": self.errors,
        }


class PartsOutcome(WorkersOutcome):
    """How a run of all the parts of a settings file ended."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        return {
            "exit_code": int(self.exit_code),
            "restarts": self.restarts,
            "parts": [
                {
                    "part": slot.post.name,
                    "exit_code": slot.code,
                    "restarts": len(slot.deaths),
                    "report": total([_reports(slot)]),
                }
                for slot in self.workers
            ],
            "errors": self.errors,
        }


def run_workers(
    task: str,
    workers: int,
    command: Callable[[str], Sequence[str]],
    publication: LivenessOutputs,
    *,
    rule: RestartRule,
    keeps_stdout: bool = False,
) -> WorkersOutcome:
    """Supervise so many processes of ``command`` until all of them are over.

    With ``keeps_stdout`` what workers print goes to the standard error stream.
    """
    events: SimpleQueue[SupervisorEvent] = SimpleQueue()
    posts = worker_specs(workers)
    nursery = Spawner(
        lambda _, supervised: command(supervised), posts, events, keeps_stdout=keeps_stdout
    )
    supervisor = Supervisor(
        nursery.start, posts, events, rule=rule, has_beats=publication.is_wanted
    )
    listener = SignalListener(lambda number: events.put(SignalReceived(number)))
    # Signals are taken before the first process starts: one that comes in between is not lost.
    with listener, publication.of(task, supervisor.snapshot):
        code = supervisor.run()
    nursery.close()
    return WorkersOutcome(task, code, supervisor.restarts, supervisor.slots, supervisor.reason)


def run_parts(
    posts: Sequence[ProcessSpec],
    command: Callable[[ProcessSpec, str], Sequence[str]],
    tell: Tell,
    *,
    rule: RestartRule,
    keeps_stdout: bool = False,
) -> PartsOutcome:
    """Supervise a process for each post until all are over; ``tell`` gets a line for each event."""
    events: SimpleQueue[SupervisorEvent] = SimpleQueue()
    nursery = Spawner(command, posts, events, keeps_stdout=keeps_stdout)
    supervisor = Supervisor(nursery.start, posts, events, rule=rule, tell=tell)
    with SignalListener(lambda number: events.put(SignalReceived(number))):
        code = supervisor.run()
    nursery.close()
    return PartsOutcome("", code, supervisor.restarts, supervisor.slots, supervisor.reason)


def total(groups: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Several reports as one: counts are added, ids joined, the longest time is taken."""
    reports = [report for group in groups for report in group]
    if not reports:
        return None
    document: dict[str, Any] = {}
    for name, value in reports[0].items():
        values = [report[name] for report in reports]
        if name == "elapsed":
            document[name] = max(values)
        elif isinstance(value, list):
            joined = [each for some in values for each in some]
            # These are files, which the workers of one task may share.
            document[name] = list(dict.fromkeys(joined)) if name == "dead_letters" else joined
        elif isinstance(value, int):
            document[name] = sum(values)
        else:
            document[name] = value if len(set(values)) == 1 else "several"
    return document


def _reports(slot: Slot) -> list[Mapping[str, Any]]:
    return [each["report"] for each in slot.outcomes if each["report"] is not None]
