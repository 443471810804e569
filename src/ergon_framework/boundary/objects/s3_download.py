"""One blob on its way out of a bucket."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.errors import StoreError, StoreUnavailableError

AHEAD = 4 << 20
"""Bytes asked for at once: a request costs more than they do."""


class S3Download:
    """The bytes of one blob, asked for a window at a time."""

    def __init__(
        self, size: int, fetch: Callable[[int, int], bytes], *, ahead: int = AHEAD
    ) -> None:
        self.size = size
        self._ahead = ahead
        self._fetch = fetch
        self._at = 0
        self._window = b""
        self._start = 0
        self._is_closed = False

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        if self._is_closed:
            raise StoreError("this download has ended", remedy="begin another one")
        if most <= 0 or self._at >= self.size:
            return b""
        if not self._start <= self._at < self._start + len(self._window):
            end = min(self.size, self._at + max(most, self._ahead))
            self._start, self._window = self._at, self._fetch(self._at, end)
        skipped = self._at - self._start
        data = self._window[skipped : skipped + most]
        if not data:
            raise StoreUnavailableError(
                f"an object ended at byte {self._at} of {self.size}", remedy="verify the zone"
            )
        self._at += len(data)
        return data

    def seek(self, offset: int) -> None:
        """Go on from there."""
        if offset < 0:
            raise ValueError(f"there is no byte {offset}")
        self._at = offset

    def close(self) -> None:
        """Let go of it."""
        self._is_closed = True
        self._window = b""
