"""Combines acknowledgements of one channel.

A broker takes "this message" or "this message and all before it" as an acknowledgement. One frame
for a run of messages that succeeded saves most of what acknowledgements cost at both ends. It is
written only if every earlier message of the channel is known here and settled: a message that has
reached the client library and not yet this class would otherwise be acknowledged without having
been handled.
"""

from __future__ import annotations


class Acknowledgements:
    """The delivery tags of one channel, which count from 1; its owner serialises the calls."""

    def __init__(self) -> None:
        self._in_hand: dict[int, None] = {}  # in ascending order
        self._succeeded: list[int] = []
        self._arrived = 0
        self._highest = 0

    def arrived(self, tag: int) -> None:
        """Note that a message was delivered and is not settled."""
        self._arrived += 1
        self._in_hand[tag] = None
        if tag > self._highest:
            self._highest = tag
        else:  # an answer to basic.get, behind which others have come
            self._in_hand = dict.fromkeys(sorted(self._in_hand))

    def succeeded(self, tag: int) -> None:
        """Note that a message is to be acknowledged with the next ones."""
        self._in_hand.pop(tag, None)
        self._succeeded.append(tag)

    def settled(self, tag: int) -> None:
        """Note that a message was settled in another way. Call it when that was sent."""
        self._in_hand.pop(tag, None)

    def take(self) -> list[tuple[int, bool]]:
        """The tags to write now, each with whether it also acknowledges all before it."""
        tags, self._succeeded = self._succeeded, []
        # Where fewer have arrived than the highest tag says, some are still on their way to us.
        is_whole = self._arrived == self._highest
        lowest = next(iter(self._in_hand), self._highest + 1) if is_whole else 0
        together = [tag for tag in tags if tag < lowest]
        alone = [(tag, False) for tag in tags if tag >= lowest]
        return [(max(together), len(together) > 1), *alone] if together else alone
