"""Heads of requests that were seen before: clients say the same again and again.

What the parser made of some bytes it would make of the same bytes again, so it need not be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

END = b"\r\n\r\n"
MOST = 512
"""Heads that are remembered; after that it begins anew."""
LONGEST = 1024
"""Bytes of a head that is worth remembering."""


@dataclass(frozen=True, slots=True)
class Head:
    """What was made of a request line and its headers."""

    method: str
    url: str
    headers: dict[bytes, bytes]
    length: int
    """Bytes of the body."""


class Heads:
    """Those of one server. Only heads that nothing is wrong with, whoever sends them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: dict[bytes, Head] = {}

    def recognise(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, when ``data`` is one whole request whose head is known."""
        end = data.find(END) + len(END)
        head = self._known.get(data[:end])
        if head is None or len(data) != end + head.length:
            return None
        return head, data[end:]

    def remember(self, data: bytes, head: Head) -> None:
        """``data`` was one whole request, and this is what was made of its head."""
        end = data.find(END) + len(END)
        if len(data) != end + head.length or end > LONGEST or not self._most:
            return  # it did not begin and end there
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[data[:end]] = head
