"""Object stores that several nodes share, and how bytes are removed from one without losing any.

Whether nothing names some bytes and their removal are two steps, and another node may name the same
bytes in between. So what is removed stays aside for a while: whoever looks again and finds a name
for it brings it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable


class Dated(NamedTuple):
    """Some bytes, and when they came to where they are."""

    digest: bytes
    at: float


@runtime_checkable
class SharedObjects(Protocol):
    """What such a store offers beside the port."""

    def put_before(self, instant: float, *, since: float = 0.0) -> Iterator[bytes]:
        """Everything that came before an instant, but not before another one."""

    def removed(self) -> Iterator[Dated]:
        """What was removed and can still be brought back, and when it was."""

    def restore(self, digest: bytes) -> bool:
        """Bring back what was removed; whether there was anything to bring back."""

    def forget(self, digest: bytes) -> None:
        """Let go of what was removed for good."""
