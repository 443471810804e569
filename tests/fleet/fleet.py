"""A fleet of real workers on one store: started, killed, frozen and stopped by a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.jobstore import Job, NewJob, Search
from tests import fork_server
from tests.campaign.event_file import Book
from tests.differential.places import Place, open_jobs
from tests.jobs import real_worker

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent.parent
LEASE = 3.0
POOL = 2
"""Jobs that one worker runs at once."""
LEAVING = 60.0
PATIENCE = 90.0
"""Seconds for what many processes bring about together, on a machine that is busy."""
WAITING = Search(statuses=(JobStatus.PENDING, JobStatus.ACTIVE, JobStatus.RETRYING))
SETTINGS = """
[store]
url = {url}

[executors.hands]
command = {command}
pool_size = {pool}

[jobs]
default_executor = "hands"
{manner}

{more}
"""
HURRIED = """
lease = {lease}
poll = 0.2
grace = 5.0
backoff = {{ base = 0.01, multiplier = 2.0, cap = 1.0, jitter = 0.1 }}
"""
"""What makes a fleet quick to show something; without it, it has the defaults."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that the fleet brings about."""
    real_worker.wait_until(condition, what, PATIENCE)


class Member:
    """One worker process."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: dict[str, str]
    ) -> None:
        self.name = name
        self.errors = folder / f"{name}.err"
        with self.errors.open("ab") as log:
            self._process = fork_server.start(
                command,
                cwd=folder,
                env={**with_path(str(ROOT)), "FLEET_WORKER": name, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self) -> str:
        """What it told the operator."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def freeze(self) -> None:
        """Stop it with everything it started, as a host that hangs."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def die(self) -> None:
        """Kill it with everything it started, as a host that loses its power."""
        self._signal(signal.SIGKILL)
        self._process.wait(LEAVING)

    def leave(self) -> int:
        """Ask it to leave; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(LEAVING)
        except subprocess.TimeoutExpired:
            self.die()
            raise

    def _signal(self, number: int) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        pids = children.read_text(encoding="ascii").split() if self.is_alive else []
        for pid in (self._process.pid, *map(int, pids)):
            os.kill(pid, number)


class Fleet:
    """The settings, the book of the handlers, and the workers."""

    def __init__(
        self, place: Place, folder: Path, *, more: str = "", lease: float | None = LEASE
    ) -> None:
        self.place = place
        self.folder = folder
        self.book = Book(folder / "book")
        self.store = open_jobs(place)
        self.members: list[Member] = []
        command = [
            sys.executable,
            "-S",
            "-E",
            str(PROGRAMS / "recording_executor.py"),
            str(self.book.path),
        ]
        words = {"url": json.dumps(place.url), "command": json.dumps(command), "pool": POOL}
        manner = "" if lease is None else HURRIED.format(lease=lease)
        text = SETTINGS.format(**words, manner=manner, more=more)
        (folder / "ergon.toml").write_text(text, encoding="utf-8")

    def start(self, *names: str, **env: str) -> list[Member]:
        """Workers of these names, when all of them have told the store that they live."""
        command = [sys.executable, "-m", "ergon_framework.cli", "worker", "--name"]
        return self.run({name: [*command, name] for name in names}, **env)

    def run(self, commands: dict[str, Sequence[str]], **env: str) -> list[Member]:
        """The same, with other programs than the command."""
        new = [Member(name, words, self.folder, env) for name, words in commands.items()]
        self.members += new
        wait_until(lambda: self._has_told(new), "the start of all workers")
        return new

    def _has_told(self, members: Sequence[Member]) -> bool:
        for member in members:
            assert member.is_alive, f"{member.name} did not start: {member.said()}"
        return {member.name for member in members} <= {each.id for each in self.store.workers()}

    def add(self, *jobs: NewJob) -> None:
        """Enqueue."""
        self.store.add(jobs)

    def job(self, job_id: str) -> Job:
        """One that is there."""
        found = self.store.find(job_id)
        assert found is not None
        return found

    def jobs(self) -> list[Job]:
        """All."""
        return list(self.store.search(Search()))

    def finish(self) -> None:
        """Wait until nothing is left to do."""
        wait_until(lambda: not self.store.count(WAITING), "the end of all jobs")

    def told(self, verb: str) -> list[list[str]]:
        """What the handlers wrote down: job, worker and process."""
        return [rest for found, *rest in self.book.lines() if found == verb]

    def holder(self, job_id: str) -> str:
        """The worker that runs a job, once it has begun."""
        wait_until(lambda: any(words[0] == job_id for words in self.told("begin")), f"{job_id}")
        return next(words[1] for words in reversed(self.told("begin")) if words[0] == job_id)

    def member(self, name: str) -> Member:
        """The worker of that name."""
        return next(each for each in self.members if each.name == name)

    def leave(self) -> None:
        """Everybody leaves, as asked."""
        codes = {member.name: member.leave() for member in self.members if member.is_alive}
        assert set(codes.values()) <= {0}, codes

    def close(self) -> None:
        """Nobody is left behind."""
        for member in self.members:
            if member.is_alive:
                member.thaw()
                member.die()
        self.store.close()
        self.book.close()


def with_path(*folders: str) -> dict[str, str]:
    """The environment of a process that finds its modules in these folders, too."""
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *([known] if known else [])])}


def note(job_id: str, seconds: float = 0.0, **fields: Any) -> NewJob:
    """A job that takes so long."""
    return NewJob(id=job_id, handler="note", args=json.dumps([seconds]).encode(), **fields)


def hold(job_id: str, until: Path, **fields: Any) -> NewJob:
    """A job that takes until a file is there."""
    return NewJob(id=job_id, handler="hold", args=json.dumps([str(until)]).encode(), **fields)


def completions(job: Job) -> int:
    """How often a job's history says that it was completed."""
    return sum(json.loads(entry)["event"] == "completed" for entry in job.history)
