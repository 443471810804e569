"""Where a run makes its liveness known: in a file, over HTTP, or to the parent process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.app.console import say
from ergon_framework.app.running.liveness import STALL_AFTER, Snapshot
from ergon_framework.app.running.liveness_file import liveness_file

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Publication:
    """What was asked for."""

    file: Path | None = None
    port: int | None = None
    host: str = LOOPBACK
    stall_after: float = STALL_AFTER

    @property
    def is_wanted(self) -> bool:
        """Whether anybody looks at all. If not, the engine need not tell anything."""
        return self.file is not None or self.port is not None

    @contextmanager
    def of(self, task: str, snapshot: Callable[[], Snapshot]) -> Iterator[None]:
        """Publish until the end of the block."""
        with ExitStack() as stack:
            if self.file is not None:
                stack.enter_context(liveness_file(self.file, task, snapshot))
            if self.port is not None:
                from ergon_framework.app.running.probe import probe_server  # brings a web server

                port = stack.enter_context(probe_server(self.host, self.port, snapshot))
                say(f"probes on http://{self.host}:{port}/live and /ready")
            yield
