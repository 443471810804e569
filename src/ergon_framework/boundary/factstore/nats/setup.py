"""Opening a zone's stream: making it, or seeing that it is the right one and whole."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any

from ergon_framework.boundary.factstore.nats.schema import (
    Attribute,
    Counters,
    LogState,
    Mark,
    Subjects,
    ZoneRecord,
)
from ergon_framework.boundary.factstore.nats.session import RecordCache, StreamTransaction
from ergon_framework.errors import ConfigurationError, StoreSchemaError, StoreUnavailableError
from ergon_framework.ports.factstore import NEW_EPOCH, OUTBOUND, StoreInfo
from ergon_framework.storage.conflicts import retry_conflicts
from ergon_framework.storage.nats import NatsClient, NatsStream, OvertakenError, address_of
from ergon_framework.storage.nats.diagnostics import (
    Account,
    Durability,
    durability_of,
    refuse_unsynced,
)
from ergon_framework.storage.nats.stream import StreamState

logger = logging.getLogger("ergon_framework.boundary")

SCHEMA = 1
_ZONE, _SCHEMA, _MOVED_TO = "ergon.zone", "ergon.schema", "ergon.moved_to"
_MOVING = "ergon.moving"
MOVED_TO = "moved_to"
"""The attribute of the store that says where the zone went."""
_MAX_ATTEMPTS = 50  # to found the store or undo a torn commit, while others do the same
_CONFIG: dict[str, Any] = {
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "max_msgs_per_subject": -1,  # facts to one zone have one subject
    "allow_direct": True,
    "allow_atomic": True,
}
_UNLIMITED = {"max_age": 0, "max_msgs": -1}


def zones_in_space(url: str) -> list[str]:
    """The zones whose facts are kept under a URL."""
    with closing(NatsClient(address_of(url))) as line:
        said = [each["config"].get("metadata") or {} for each in Account(line).streams()]
    return sorted(each[_ZONE] for each in said if _ZONE in each)


def make_marked(url: str, zone: str, state: bytes) -> None:
    """Found the store of a zone with a move state in it; nothing if it is there."""
    setup = StreamSetup(url, zone, read_only=False)
    with closing(setup.stream.client):
        setup.meet()
        setup.move_in(setup.server_time, state)


class StreamSetup:
    """Opens the stream of a zone: whose it is, its version, and how durable it is."""

    def __init__(self, url: str, zone: str, *, read_only: bool) -> None:
        address = address_of(url)
        self.subjects = Subjects(address.space, zone)
        self.stream = NatsStream(NatsClient(address), self.subjects.stream, self.subjects.zone)
        self.durability = Durability(1, None)
        self.moved_to = ""
        """Where the zone went by the stream's metadata; empty while it is here."""
        self.is_moving = False
        """Whether the zone was ever shut: then the attribute ``MOVED_TO`` counts instead."""
        self.zone = zone
        self._is_read_only = read_only

    @property
    def name(self) -> str:
        """The URL of the store, without a password."""
        return self.stream.client.address.name

    def meet(self) -> None:
        """See that the server can serve and that the stream is ours; make it when there is none."""
        Account(self.stream.client).refuse_unfit()
        standing = self.stream.state()
        if not self._is_read_only:
            self._refuse_unsynced(standing)
        if standing is None:
            if self._is_read_only:
                raise StoreSchemaError(
                    f"{self.name} has no stream of the zone {self.zone!r} yet",
                    remedy="open it once for writing",
                )
            self._create()
            standing = self.standing()
        self._check(standing.config)
        monitor = self.stream.client.address.monitor
        self.durability = durability_of(standing.config, monitor)

    def _refuse_unsynced(self, standing: StreamState | None) -> None:
        """Before anything is made: a stream that is there has as many replicas as it has."""
        address = self.stream.client.address
        config = {"num_replicas": address.replicas} if standing is None else standing.config
        if not address.accepts_unsynced:
            refuse_unsynced(durability_of(config, address.monitor), self.name)

    def standing(self) -> StreamState:
        """The state of the stream, which must exist."""
        standing = self.stream.state()
        if standing is None:
            raise StoreUnavailableError(
                f"{self.name} no longer has the stream {self.stream.name}",
                remedy="restore it, or restart to begin with an empty one",
            )
        said = standing.config.get("metadata") or {}
        self.moved_to, self.is_moving = said.get(_MOVED_TO, ""), _MOVING in said
        return standing

    def look_at_the_attribute(self) -> None:
        """Let all processes read from the attribute where the zone was moved, from now on.

        The metadata of a stream cannot be changed on a condition: a move that was stopped and went
        on late would overwrite what another said there. So the metadata has a fixed value from then
        on, and what changes is a record of the stream. A process that writes reads the state of the
        stream after another one has written, and sees the value.
        """
        self._say({_MOVING: "1"})

    def tell_earlier_versions(self, place: str | None) -> None:
        """Write the zone's new place into the stream's metadata, where earlier versions look for
        it.
        """
        self._say({_MOVED_TO: place})

    def _say(self, words: Mapping[str, str | None]) -> None:
        config = self.standing().config
        before = config.get("metadata") or {}
        said = {k: value for k, value in {**before, **words}.items() if value is not None}
        if said != before:
            self.stream.change({**config, "metadata": said})

    def server_time(self) -> float:
        """What time it is at the server."""
        return self.standing().now

    def _create(self) -> None:
        self.stream.create(
            {
                **_CONFIG,
                "subjects": [self.subjects.everything],
                "num_replicas": self.stream.client.address.replicas,
                "metadata": {_ZONE: self.zone, _SCHEMA: str(SCHEMA)},
            }
        )

    def _check(self, config: Mapping[str, Any]) -> None:
        """Refuse a stream that is not ours, or that would not keep what it is given."""
        said = config.get("metadata") or {}
        stream = f"the stream {self.stream.name} of {self.name}"
        if not str(said.get(_SCHEMA, "")).isdigit():
            raise StoreSchemaError(
                f"{stream} is not one of ours", remedy="choose another name at the end of the URL"
            )
        if int(said[_SCHEMA]) > SCHEMA:
            raise StoreSchemaError(
                f"{stream} was made by a newer version of Ergon",
                remedy="upgrade Ergon here, too",
                details={"schema": int(said[_SCHEMA]), "known": SCHEMA},
            )
        if said.get(_ZONE) != self.zone:
            raise ConfigurationError(
                f"{stream} belongs to the zone {said.get(_ZONE)!r}, not to {self.zone!r}",
                remedy="name that zone, or another name at the end of the URL",
            )
        wrong = [k for k, v in {**_CONFIG, **_UNLIMITED}.items() if config.get(k) != v]
        if wrong:
            wanted = {**_CONFIG, **_UNLIMITED}[wrong[0]]
            raise ConfigurationError(
                f"{stream} has {wrong[0]} = {config.get(wrong[0])!r} and would not keep what it is"
                " given",
                remedy=f"set it back to {wanted!r}: nats stream edit {self.stream.name}",
            )

    # ---- moving in ------------------------------------------------------------------------------

    def move_in(self, clock: Callable[[], float], state: bytes | None = None) -> StoreInfo:
        """Found the store, or look whose it is.

        ``state`` is written down about a move in the commit that founds it.
        """
        if self._is_read_only:
            return self.read_info(self._begin(self.standing().last))

        def attempt() -> StoreInfo:
            self.repair(0, clock)
            last = self.standing().last
            transaction = self._begin(last)
            found = transaction.get(ZoneRecord, self.subjects.zone)
            if found is None:
                _found(transaction, self.zone, clock())
                if state is not None:
                    transaction.put(self.subjects.mark, Mark(state))
                self.stream.commit(transaction.messages(), last)
                return self.read_info(self._begin(self.standing().last))
            return _info(found)

        return retry_conflicts(
            attempt,
            max_attempts=_MAX_ATTEMPTS,
            give_up=lambda: StoreUnavailableError(
                f"others wrote to {self.name} all the time",
                remedy="try again when less is going on",
            ),
        )

    def read_info(self, transaction: StreamTransaction) -> StoreInfo:
        """Which store it is."""
        found = transaction.get(ZoneRecord, self.subjects.zone)
        if found is None:
            raise StoreSchemaError(f"{self.name} has no zone yet", remedy="open it for writing")
        return _info(found)

    def repair(self, last_known: int, clock: Callable[[], float]) -> None:
        """After a new connection: undo what a server left in part, and see what it has lost.

        A server that comes back with less than it had acknowledged has gone back in time: the store
        begins a new epoch, so that all its readers notice.
        """
        if self._is_read_only:
            return
        has_lost_its_end = self._has_lost_its_end(self.standing().last)
        self._undo()
        last = self.standing().last
        if last < last_known or has_lost_its_end:
            transaction = self._begin(last)
            found = transaction.get(ZoneRecord, self.subjects.zone)
            if found is None:
                _found(transaction, self.zone, clock())
            else:
                renew(transaction, found, clock(), "the server has lost what it acknowledged last")
            with suppress(OvertakenError):  # another process has noticed, too
                self.stream.commit(transaction.messages(), last)

    def _has_lost_its_end(self, last: int) -> bool:
        """Whether the newest message is gone: the store never removes that one."""
        return last > 0 and self.stream.at(last) is None and self.standing().last == last

    def _undo(self) -> None:
        def attempt() -> int:
            return self.stream.undo_torn(self.subjects.everything, self.subjects.fence)

        # The processes that overtook this one have opened the stream, too, and have undone it.
        with suppress(OvertakenError):
            if retry_conflicts(attempt, max_attempts=_MAX_ATTEMPTS):
                logger.warning(
                    "%s had left a commit half done, which nobody was told of: undone", self.name
                )

    def _begin(self, last: int) -> StreamTransaction:
        memory = RecordCache()
        memory.last = last
        return StreamTransaction(self.stream, self.subjects, memory, is_sure=True)


def _info(found: ZoneRecord) -> StoreInfo:
    return StoreInfo(found.zone, found.epoch, found.created_at)


def _found(transaction: StreamTransaction, zone: str, now: float) -> None:
    transaction.put(transaction.subjects.tally, Counters(logs=1))
    transaction.put(transaction.subjects.log_state(OUTBOUND), LogState(OUTBOUND, 1))
    transaction.put(transaction.subjects.zone, ZoneRecord(zone, secrets.token_hex(8), now))


def renew(transaction: StreamTransaction, found: ZoneRecord, now: float, why: str) -> None:
    """Begin a new epoch, and write the reason into the journal."""
    transaction.note(now, "new_epoch", f"{why}; its epoch was {found.epoch}")
    record = ZoneRecord(found.zone, secrets.token_hex(8), found.created_at)
    transaction.put(transaction.subjects.zone, record)
    transaction.put(transaction.subjects.attribute(NEW_EPOCH), Attribute(f"{now} {why}"))
