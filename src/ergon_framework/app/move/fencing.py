"""A store as one run of a move writes it.

The locks of a move (``lock``) are asked before a store is written, and a process can be stopped
between the two for as long as it likes: a lease runs out meanwhile, another run takes over and
ends, and workers use the new store. So each write carries a fence, which the store itself compares
when it writes. A run that was overtaken is refused there, whatever it believed to hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from ergon_framework.ports.transfer import (
    C,
    Fence,
    Freezable,
    JointMoveState,
    MoveState,
    OvertakenMoveError,
    RecordReader,
    RecordStore,
    TransferRecord,
    encode_move_state,
    read_move_state,
)


class FencedStore:
    """The records of a store, which are written only while no other run has written there.

    What the run decides on has to be read after this was made: its fence is the state of the store
    at that moment, and afterwards the state that the run itself wrote last.
    """

    def __init__(self, records: RecordStore, name: str, reader: RecordReader | None = None) -> None:
        """``reader`` reads the records, where they are not copied as they are."""
        self.records = records
        self._reader = reader or records
        self.name = name
        """What the store is called in front of people."""
        self.fence = Fence(records.move_state())
        """What the store is compared with when this run writes there."""
        self._sent = self.fence

    @property
    def state(self) -> MoveState:
        """The state of the store as this run knows it."""
        return read_move_state(self.fence.state)

    def follow(self, other: FencedStore) -> None:
        """Write only if the store is as another handle of this run has found or left it."""
        self.fence = other.fence

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place (None: from the beginning), in order."""
        return self._reader.dump(kind, after, limit)

    def load(self, records: Sequence[TransferRecord]) -> None:
        """Write records of one kind."""
        with self.named():
            self.records.load(records, self.fence)

    def discard(self, records: Sequence[TransferRecord]) -> None:
        """Delete records of one kind."""
        with self.named():
            self.records.discard(records, self.fence)

    def freeze(self, place: str | None) -> None:
        """Refuse changes, or let them in again, where the store can do that."""
        if isinstance(self.records, Freezable):
            with self.named():
                self.records.freeze(place, self.fence)

    def claim(self, token: str) -> None:
        """Write the token of this run into the state: from now on all earlier runs are refused."""
        self.write_state(replace(self.state, token=token))

    def write_state(self, state: MoveState) -> None:
        """Write the state down."""
        written = encode_move_state(state)
        # Before the write: if its answer is lost, ``recover`` tells by it whether the write was
        # made.
        self._sent = Fence(written)
        with self.named():
            self.records.set_move_state(written, self.fence)
        self.fence = self._sent

    def recover(self) -> None:
        """Go on after a failure: the last state that was sent may have been written or not."""
        if self.records.move_state() == self._sent.state:
            self.fence = self._sent

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name the store in the error of an overtaken run."""
        try:
            yield
        except OvertakenMoveError as error:
            raise OvertakenMoveError(
                f"another move wrote into {self.name} while this one was under way, or was"
                " stopped: this one writes nothing more",
                remedy=error.remedy,
                details=error.details,
            ) from error


def write_states(stores: Sequence[FencedStore], states: Sequence[MoveState]) -> None:
    """Write the states of several stores, in one commit where they are in one database.

    Otherwise a worker could use one part while another is still incomplete, and the next run of the
    move would have to overwrite what it did.
    """
    first, *others = stores
    if not others or not isinstance(first.records, JointMoveState):
        for store, state in zip(stores, states, strict=True):
            store.write_state(state)
        return
    written = [encode_move_state(state) for state in states]
    with first.named():
        first.records.set_move_states(written, [store.fence for store in stores])
    for store, each in zip(stores, written, strict=True):
        store.fence = Fence(each)
