"""A real mosquitto for tests: private, temporary, on loopback, with its sessions on disk."""

from __future__ import annotations

import itertools
import shutil
import socket
from collections.abc import Iterator

import pytest

from tests.servers.server import Server, free_port, made, started
from tests.servers.tls import Papers

PLACES = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:/usr/local/bin"
"""Where packages put it that PATH may not name."""


def mosquitto_program() -> str:
    """The program; without it the test is skipped, also where all other servers must be there.

    No wheel has it, only packages of systems do.
    """
    found = shutil.which("mosquitto") or shutil.which("mosquitto", path=PLACES)
    if found is None:
        pytest.skip("mosquitto is not installed; on Debian: apt-get install mosquitto")
    return found


class Mosquitto(Server):
    """One broker. It writes its sessions down when it is stopped, and after each change."""

    NAME = "mosquitto"

    def __init__(self, papers: Papers | None = None) -> None:
        self._program = mosquitto_program()
        super().__init__()
        self.port, self.tls_port = free_port(), free_port()
        self._numbers = itertools.count(1)
        lines = [
            "user root",  # it would change its user otherwise, and could not enter the folder
            "persistence true",
            f"persistence_location {self.folder}/",
            "autosave_interval 1",
            "autosave_on_changes true",
            "max_queued_messages 0",
            "allow_anonymous true",
            f"listener {self.port} 127.0.0.1",
        ]
        if papers is not None:
            lines += [
                f"listener {self.tls_port} 127.0.0.1",
                f"cafile {papers.ca}",
                f"certfile {papers.certificate('server')}",
                f"keyfile {papers.key('server')}",
            ]
        (self.folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    def allow(self, *lines: str) -> None:
        """What anonymous users may do from now on; a server that runs is to be reloaded."""
        rules = self.folder / "rules"
        rules.write_text("\n".join(lines) + "\n")
        rules.chmod(0o600)  # it warns of others
        config = self.folder / "mosquitto.conf"
        setting = f"acl_file {rules}\n"
        if setting not in (before := config.read_text()):
            config.write_text(setting + before)

    def new_topic(self) -> str:
        """A topic that nobody has used."""
        return f"shop/orders/{next(self._numbers)}"

    def url(self, topic: str, *, port: int | None = None, scheme: str = "mqtt") -> str:
        """How to reach it, through another port if one is given."""
        return f"{scheme}://127.0.0.1:{port or self.port}/{topic}"

    def _words(self) -> list[str]:
        return [self._program, "-c", str(self.folder / "mosquitto.conf")]

    def _answers(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="session")
def mosquitto(signed: Papers) -> Iterator[Mosquitto]:
    """A mosquitto for all tests of a run, with TLS on a port of its own."""
    with started(lambda: Mosquitto(signed)) as server:
        yield server


@pytest.fixture
def own_mosquitto() -> Iterator[Mosquitto]:
    """A mosquitto of the test's own, not started, to be ended and started as it likes."""
    with made(Mosquitto) as server:
        yield server
