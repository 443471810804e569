"""A site: one node as a process of its own, with its certificate and its policy."""

from __future__ import annotations

import json
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ERGON = [sys.executable, "-m", "ergon_framework.cli", "boundary"]
LONGEST = 15.0
"""Seconds after which something that should have happened is given up."""

POLICIES = {
    # The plant: its own certificate may do everything, the MES may tell, the enterprise may pull.
    "plant": """
[identities.plant]
operations = ["admin"]
logs = ["*"]
consumers = ["*"]

[identities.mes]
operations = ["produce"]
assert = ["plant"]
target = ["enterprise"]
buckets = ["work-order-files"]

[identities.enterprise]
operations = ["pull"]
logs = ["outbound"]
consumers = ["zone:enterprise"]
buckets = ["*"]
""",
    # The enterprise: it takes facts of the plant from the plant, and the ERP may read them.
    "enterprise": """
[identities.enterprise]
operations = ["admin"]
logs = ["*"]
consumers = ["*"]

[identities.plant]
assert = ["plant"]

[identities.erp]
operations = ["consume"]
logs = ["inbound:plant"]
consumers = ["erp"]
buckets = ["*"]
""",
}


def certificates(folder: Path) -> None:
    """A development authority, and a certificate for everybody."""
    made = str(folder / "certs")
    ergon("certs", "ca", "--folder", made)
    for name in ("plant", "enterprise", "mes", "erp"):
        ergon("certs", "issue", name, "--folder", made)


def credentials(folder: Path, name: str) -> dict[str, str]:
    """The files that somebody shows and trusts."""
    made = folder / "certs"
    return {
        "cert": str(made / f"{name}.pem"),
        "key": str(made / f"{name}.key"),
        "ca": str(made / "ca.pem"),
    }


class Site:
    """One zone and its node."""

    def __init__(
        self, name: str, folder: Path, port: int, peers: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"https://127.0.0.1:{port}"
        self.folder = folder
        self.files = credentials(folder, name)
        self._peers = peers or {}
        self._process: subprocess.Popen[str] | None = None
        self._policy = folder / f"{name}-policy.toml"
        self._policy.write_text(POLICIES[name], encoding="utf-8")

    def start(self) -> None:
        """Start the node, and return when it says that it is ready."""
        words = ["serve", "--zone", self.name, "--data", str(self.folder / self.name)]
        words += ["--listen", f"127.0.0.1:{self.port}", "--policy", str(self._policy)]
        words += options(self.files)
        for peer, url in self._peers.items():
            words += ["--peer", f"{peer}={url}"]
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*ERGON, *words], stdout=subprocess.PIPE, stderr=log, text=True
            )
        told = self._process.stdout
        if told is None or not told.readline().startswith("ready"):
            self.stop()
            raise SystemExit(f"{self.name} did not start:\n{self.log()}")

    def stop(self) -> None:
        """Ask the node to stop, and wait for it."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End the node without a warning, as the machine might."""
        self._end(subprocess.Popen.kill)

    def _end(self, way: Callable[[subprocess.Popen[str]], None]) -> None:
        process, self._process = self._process, None
        if process is not None:
            with process:
                way(process)

    def log(self) -> str:
        """What the node wrote about itself."""
        return (self.folder / f"{self.name}.log").read_text(encoding="utf-8")

    # ---- looking ----

    def status(self) -> dict[str, Any]:
        """The node's own account: the same as ``ergon boundary status --json``."""
        context = ssl.create_default_context(cafile=self.files["ca"])
        context.load_cert_chain(self.files["cert"], self.files["key"])
        request = urllib.request.Request(  # noqa: S310 - always https
            f"{self.url}/bsfg.v1.BoundaryAdmin/GetStatus", b"{}", method="POST"
        )
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310
            shape: dict[str, Any] = json.load(answer)
        return shape

    def head(self, log: str) -> int:
        """The highest offset of a log."""
        return _of(self.status()["logs"], "log", log, "head_offset")

    def lag(self, consumer: str) -> int:
        """How many facts wait for a consumer."""
        return _of(self.status()["consumers"], "consumer_name", consumer, "lag")

    def link_mode(self, peer: str) -> str:
        """How the link to a peer stands."""
        found: str = _of(self.status()["links"], "peer", peer, "mode")
        return found

    def seek(self, consumer: str, offset: int, reason: str) -> None:
        """Set a consumer's cursor, as an operator does it."""
        words = ["consumers", "seek", consumer, str(offset), "--reason", reason]
        ergon(*words, "--url", self.url, *options(self.files))


def ergon(*words: str) -> None:
    """One command of the command line."""
    subprocess.run([*ERGON, *words], check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def options(files: Mapping[str, str]) -> list[str]:
    """Certificates as options."""
    return [word for name, path in files.items() for word in (f"--{name}", path)]


def free_port() -> int:
    """A port that nobody uses, and that no connection is given by chance before we use it."""
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - no secret
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def until(what: str, is_so: Callable[[], bool]) -> None:
    """Wait for something; a story that hangs is worse than one that ends badly."""
    end, pause = time.monotonic() + LONGEST, threading.Event()
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"it did not come true within {LONGEST:.0f} seconds that {what}")
        pause.wait(0.05)


def _of(rows: list[dict[str, Any]], key: str, name: str, field: str) -> Any:
    return next((row[field] for row in rows if row[key] == name), 0)
