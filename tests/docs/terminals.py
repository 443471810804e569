"""Runs a program on a pseudo-terminal."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

from tests.docs.pages import ROOT
from tests.docs.programs import environment


class Terminal:
    """A Python program on a pseudo-terminal, and what it writes there."""

    def __init__(self, *arguments: str, patience: float = 10.0, **changes: str) -> None:
        self._patience = patience
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment(TERM="xterm-256color", COLUMNS="100", LINES="40", **changes),
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)

    def __enter__(self) -> tuple[subprocess.Popen[bytes], Iterator[str]]:
        return self._process, self._read()

    def _read(self) -> Iterator[str]:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError as error:
                if error.errno != errno.EIO:  # Linux: the other side is closed
                    raise
                return
            if not data:
                return
            yield data.decode(errors="replace")

    def __exit__(self, *_error: object) -> None:
        if self._process.poll() is None:
            try:
                self._process.wait(self._patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        os.close(self._master)
