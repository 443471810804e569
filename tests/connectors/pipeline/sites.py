"""The two sites of the page about pipelines, each a process that a test starts and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Self

from tests import fork_server
from tests.connectors.pipeline.http_services import SECRET, HttpServices
from tests.docs.pages import ROOT, blocks
from tests.servers.server import free_port
from tests.waiting import until

PAGE = ROOT / "docs" / "howto" / "build-a-pipeline.md"
SOONER = {"lease=5": "lease=1"}
"""What a test changes, so that it need not wait for leases of the dead."""
JOBS = "\n[jobs]\nlease = 1.0\nbackoff = { base = 0.01, cap = 0.02 }\n"


def write_sites(folder: Path, connectors: str = "") -> None:
    """The files of the page, with free ports, short leases, and more connectors of the shop."""
    ports = {str(port): str(free_port()) for port in (9461, 9462)}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file is None:
            continue
        text = block.text
        for before, after in {**ports, **SOONER}.items():
            text = text.replace(before, after)
        file = folder / block.file
        file.parent.mkdir(exist_ok=True)
        more = JOBS + connectors if block.file == "shop/ergon.toml" else ""
        file.write_text(f"{text}\n{more}", encoding="utf-8")


class Site:
    """One site, whose process may be told to die at a failpoint."""

    def __init__(self, folder: Path, name: str, orders: str, services: HttpServices) -> None:
        self.folder = folder / name
        self._program = self.folder / f"{name}.py"
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "ORDERS_URL": orders,
            "RATES_URL": services.url,
            "HOOK_URL": f"{services.url}/hook",
            "HOOK_SECRET": SECRET,
        }
        self._log = folder / f"{name}.log"
        self._stream: IO[bytes] | None = None
        self._process: subprocess.Popen[Any] | None = None

    def start(self, failpoints: str = "") -> None:
        """Start it; it runs until it is killed."""
        self._stream = self._stream or self._log.open("ab")
        self._process = fork_server.start(
            [sys.executable, str(self._program)],
            cwd=self.folder,
            env={**self._environ, "ERGON_FAILPOINTS": failpoints},
            stdout=self._stream,
            stderr=self._stream,
        )

    def kill(self) -> None:
        """End its main process as the system would that has no memory left."""
        if self._process is not None:
            self._process.kill()

    def wait_for_death(self, where: str) -> None:
        """Wait until it was killed."""
        process = self._process
        assert process is not None
        until(lambda: process.poll() is not None, f"the death at {where}")
        assert process.returncode == -signal.SIGKILL, self.log
        self._process = None

    @property
    def is_running(self) -> bool:
        """Whether its main process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it said, in all of its lives."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()
        if self._process is not None:
            self._process.wait()
        if self._stream is not None:
            self._stream.close()
