"""Where everything runs: a folder, free ports, and ``ergon run --all`` as a child of the demo."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ERGON = [sys.executable, "-m", "ergon_framework.cli"]
COPIED = (HERE / "ergon.toml", HERE / "labels.js", HERE.parent / "executors/node/executor.js")
CONSOLE = ["serve", "--port", "0"]
CONSOLE_TIMEOUT = 20.0
"""Seconds in which the console has to be ready; without it the demo goes on."""
_READY = re.compile(r"ready (\S+) pid=(\d+)")
_LISTENING = re.compile(r"listening on (\S+)")


class Command:
    """A command of ``ergon`` that runs until it is stopped, and the lines that it prints.

    What it tells on standard error goes to a file.
    """

    def __init__(self, words: list[str], log: Path, environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.log = log
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "examples.demo.guard", *ERGON, *words],
                stdin=subprocess.PIPE,  # never written to: it ends when we do
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=log.parent,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the others
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Let it come to a graceful end, and wait for that."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        self._reader.join(timeout=10)

    def last_words(self) -> str:
        """What it told last, for somebody who has to find out why."""
        told = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join([*self.lines[-10:], *told.splitlines()[-10:]])

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as told:
                for line in told:
                    self.lines.append(line.rstrip())


class Site:
    """The folder with its settings file, and the processes that the file describes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has_node = shutil.which("node") is not None
        self.plant_port, self.enterprise_port = free_ports(2)
        self._all: Command | None = None
        self._console: Command | None = None
        for file in COPIED:
            shutil.copy(file, folder)

    # ---- both ends of its life ----

    def start(self, plant_url: str) -> None:
        """Start everything; the enterprise reaches the plant under this URL."""
        environment = {**self.environment(), **self.overrides(plant_url)}
        self._all = Command(["run", "--all"], self.folder / "run.log", environment)

    def stop(self) -> None:
        """Let everything but the console come to a graceful end, and wait for that."""
        stopped, self._all = self._all, None
        if stopped is not None:
            stopped.stop()

    def open_console(self, plant_url: str) -> str | None:
        """Serve the console of all this until the site is left; its URL, or None without one."""
        environment = {**self.environment(), **self.overrides(plant_url)}
        console = self._console = Command(CONSOLE, self.folder / "console.log", environment)
        deadline = time.monotonic() + CONSOLE_TIMEOUT
        while time.monotonic() < deadline and console.process.poll() is None:
            for line in tuple(console.lines):
                if found := _LISTENING.match(line):
                    return f"{found[1]}/console"
            time.sleep(0.05)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        console, self._console = self._console, None
        if console is not None:
            console.stop()

    # ---- looking ----

    def pids(self, part: str) -> list[int]:
        """The processes that a part has had, the last one last."""
        lines = () if self._all is None else tuple(self._all.lines)
        found = (_READY.match(line) for line in lines)
        return [int(each[2]) for each in found if each is not None and each[1] == part]

    @property
    def has_ended(self) -> bool:
        """Whether it came to an end that nobody asked for."""
        return self._all is not None and self._all.process.poll() is not None

    def last_words(self) -> str:
        """What the processes told last."""
        return "" if self._all is None else self._all.last_words()

    def run(self, *words: str) -> str:
        """What a command of ``ergon`` prints here."""
        done = subprocess.run(  # noqa: S603 - our own command
            [*ERGON, *words],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    # ---- what differs from run to run ----

    def environment(self) -> dict[str, str]:
        """Ours, with the demo's modules on the import path and this Python's programs first."""
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith("ERGON_")},
            "PYTHONPATH": os.pathsep.join(path),
            "PATH": os.pathsep.join(programs),
        }

    def overrides(self, plant_url: str) -> dict[str, str]:
        """Variables that change keys of ``ergon.toml``."""
        unit_of_work = {"ENTERPRISE": f"http://127.0.0.1:{self.enterprise_port}"}
        changes: dict[str, Any] = {
            "ZONES__PLANT__LISTEN": f"127.0.0.1:{self.plant_port}",
            "ZONES__ENTERPRISE__LISTEN": f"127.0.0.1:{self.enterprise_port}",
            "ZONES__ENTERPRISE__PEERS": {"plant": plant_url},
            "EXECUTORS__PYTHON__ENV": unit_of_work,
        }
        python = [*ERGON, "executor", "--app", "examples.demo.handlers:registry"]
        if not self.has_node:
            changes["EXECUTORS__LABELS__COMMAND"] = python
            changes["EXECUTORS__LABELS__ENV"] = unit_of_work
        if shutil.which("ergon", path=self.environment()["PATH"]) is None:
            changes["EXECUTORS__PYTHON__COMMAND"] = python  # a source tree, not installed
        return {
            f"ERGON_{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in changes.items()
        }


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, and that no connection is given by chance before we use them."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - no secret
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return list(found)
