"""What a store is made of when it is laid out to be copied: copies of a few kinds, in order.

How they are read and loaded is said in ``ports/moving.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import msgspec

from ergon_framework.ports.factstore import (
    OUTBOUND,
    ConsumerInfo,
    Gap,
    Link,
    Quarantined,
    StoredFact,
    StoredObject,
    StoreInfo,
)
from ergon_framework.ports.jobstore import Job, Schedule
from ergon_framework.ports.record_codec import plain_record, read

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _portable(text: str) -> str:
    """A text as every store can keep it: PostgreSQL has none with a NUL in it."""
    return text.replace("\0", "\ufffd")


class Copy(msgspec.Struct, frozen=True):
    """One thing of a store."""

    kind: ClassVar[str] = ""
    """What it is called in a file of records."""
    title: ClassVar[str] = ""
    """What its kind is called in front of people, and in what a finished move writes down."""
    has_shared_places: ClassVar[bool] = True
    """Whether places of two stores can be compared. Otherwise what is new comes last."""
    may_leave: ClassVar[bool] = True
    """Whether it can be gone one day; where it cannot and is, that is another store."""
    may_change: ClassVar[bool] = True
    """Whether the same thing can differ one day; where it cannot and does, likewise."""
    holds_keys: ClassVar[bool] = False
    """Whether one can have what another had before: then what is gone goes first."""

    @property
    def place(self) -> Any:
        """Where it stands in the order of its kind."""
        raise NotImplementedError

    @property
    def name(self) -> Any:
        """What it is called on both sides; its place, unless places differ from store to store."""
        return self.place

    @property
    def content(self) -> bytes:
        """The same bytes for the same thing in the same state, whichever store it lies in."""
        return _encode(self)

    @property
    def is_given(self) -> bool:
        """Whether every fresh store has it."""
        return False

    def document(self) -> dict[str, Any]:
        """The same JSON for the same thing in the same state, whichever store it lies in."""
        return plain_record(self)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """What :meth:`document` made JSON of; ``ValueError`` says what does not fit."""
        return read(cls, document)


# ---- job stores ---------------------------------------------------------------------------------


_OF_THE_STORE: dict[str, Any] = {"key": None, "is_limited": False}
"""Fields of a job that each store fills by itself."""


class JobCopy(Copy, frozen=True):
    """A job, in the order of adding. ``key`` of the job is its place; None: from the beginning.

    Loading: where its id is taken by a job of the same ``created_at``, that job becomes this one
    and stays where it stands; a job of another instant goes, and this one comes last, as one whose
    id is not there does. A waiting job that is due is due, also when it waited for its limit key
    (``is_limited`` is not copied); a running one keeps its worker, its fence and its lease. Fences
    that the store gives out from then on are higher. Two jobs that are loaded never hold the same
    unique key. Nobody is woken.
    """

    kind: ClassVar[str] = "job"
    title: ClassVar[str] = "jobs"
    job: Job
    changed_at: float
    """When it was last moved; what ``Search.before`` means."""

    has_shared_places: ClassVar[bool] = False
    holds_keys: ClassVar[bool] = True

    @property
    def place(self) -> Any:
        """The store's own number."""
        return self.job.key

    @property
    def content(self) -> bytes:
        """All but the store's own number, and what the store finds out by itself."""
        job = msgspec.structs.replace(self.job, key=None, is_limited=False)
        return _encode((job, self.changed_at))

    @property
    def name(self) -> str:
        """The id."""
        return self.job.id

    def document(self) -> dict[str, Any]:
        """Without what :attr:`content` leaves out."""
        found = super().document()
        found["job"] = {k: value for k, value in found["job"].items() if k not in _OF_THE_STORE}
        return found

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """A job as it is before a store has it."""
        job = document.get("job") if isinstance(document, dict) else None
        if isinstance(job, dict) and not job.keys() & _OF_THE_STORE.keys():
            document = {**document, "job": {**job, **_OF_THE_STORE}}
        return super().from_document(document)


class QueueCopy(Copy, frozen=True):
    """The settings of a queue that has any, by name; discarding one takes its settings away.

    The tokens of its rate that were taken are missing in the new store as well.
    """

    kind: ClassVar[str] = "queue"
    title: ClassVar[str] = "queue settings"
    queue: str
    is_paused: bool
    max_active: int | None
    rate: float | None
    burst: int
    full_at: float = 0.0
    """When the bucket of tokens will be full again; 0 for a queue without a rate."""

    @property
    def place(self) -> str:
        """Its name."""
        return self.queue


class ScheduleCopy(Copy, frozen=True):
    """A schedule, by name."""

    kind: ClassVar[str] = "schedule"
    title: ClassVar[str] = "schedules"
    schedule: Schedule

    @property
    def place(self) -> str:
        """Its name."""
        return self.schedule.name


# ---- fact stores --------------------------------------------------------------------------------


class LogCopy(Copy, frozen=True):
    """A log and all that its kept facts do not tell, by its number: ``outbound`` is 1.

    The number is part of the hash chain (see ``boundary/factstore/hashchain.py``), so it is kept.
    Loading: a log that is there and has been cut further since is cut as well, whoever reads it
    and without a gap. A log without facts of its own becomes what the copy says.
    """

    kind: ClassVar[str] = "log"
    title: ClassVar[str] = "logs"
    number: int
    log: str
    first: int
    """The lowest offset that is kept; one above the head when none is."""
    chain: bytes
    """The hash chain below ``first``."""
    total: int
    """Bytes of all facts below ``first``."""
    last_at: float | None
    """When the last fact was recorded, if none is kept; otherwise None."""
    latest: dict[str, int]
    """For each zone, the last offset below ``first`` of a fact to it; zones without one left out,
    and so is the nameless zone of markers."""

    may_leave: ClassVar[bool] = False

    @property
    def place(self) -> int:
        """Its number."""
        return self.number

    @property
    def is_given(self) -> bool:
        """Whether it is ``outbound`` before any fact."""
        return self.log == OUTBOUND and self.first == 1


class FactCopy(Copy, frozen=True):
    """A kept fact, or the marker of a peer's loss, by log and offset. The log is there already.

    ``previous`` is that of the log: the offset before. Dumping a row that is not what was stored
    raises ``DataLossError``. Loading: a fact that is there is left alone; the next one goes to the
    head of its log. Where the chain that the store works out is not ``chain``, or an offset would
    be left out, ``StoreError`` is raised and it is not stored. References are not looked at: names
    of objects come with a word about that.
    """

    kind: ClassVar[str] = "fact"
    title: ClassVar[str] = "facts"
    number: int
    """Of the log."""
    log: str
    fact: StoredFact
    chain: bytes
    """The hash chain after it."""

    may_leave: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

    @property
    def place(self) -> tuple[int, int]:
        """Log and offset."""
        return self.number, self.fact.offset


class IdCopy(Copy, frozen=True):
    """An id that was ever appended, in the order of keys. All of them, kept facts' included.

    The key is ``key_of(log, from_zone, message_id)`` of ``boundary/factstore/hashchain.py``: a
    store need not know more of an id whose fact was dropped, not even its log. They are loaded
    after the facts, most of them are there by then.
    """

    kind: ClassVar[str] = "fact_id"
    title: ClassVar[str] = "ids of facts"
    key: bytes
    """16 bytes."""
    digest: bytes
    """The first 16 bytes of the identity digest."""
    offset: int

    may_leave: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

    @property
    def place(self) -> bytes:
        """The key; ``b""`` comes before all."""
        return self.key


class GapCopy(Copy, frozen=True):
    """A recorded loss, by log, beginning and end; only a gap of the store's own ever widens."""

    kind: ClassVar[str] = "gap"
    title: ClassVar[str] = "gaps"
    gap: Gap

    @property
    def place(self) -> tuple[str, int, int, str, float]:
        """All that tells it from others."""
        gap = self.gap
        return gap.log, gap.first, gap.last, gap.reason, gap.at


class ConsumerCopy(Copy, frozen=True):
    """A consumer with its lease, by name; ``lag`` and ``waiting_since`` are left out (0, None)."""

    kind: ClassVar[str] = "consumer"
    title: ClassVar[str] = "consumers"
    consumer: ConsumerInfo

    @property
    def place(self) -> str:
        """Its name."""
        return self.consumer.name


class ItemCopy(Copy, frozen=True):
    """Something in quarantine, whatever became of it, by its number, which it keeps."""

    kind: ClassVar[str] = "quarantined"
    title: ClassVar[str] = "quarantined facts"
    item: Quarantined
    is_served: bool
    """It was released and has gone out since."""

    @property
    def place(self) -> int:
        """Its number."""
        return self.item.id

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode((self._portable(), self.is_served))

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return plain_record(ItemCopy(self._portable(), self.is_served))

    def _portable(self) -> Quarantined:
        item = self.item
        return replace(item, reason=_portable(item.reason), message=_portable(item.message))


class NameCopy(Copy, frozen=True):
    """The name of an object, by bucket and key."""

    kind: ClassVar[str] = "object"
    title: ClassVar[str] = "names of objects"
    object: StoredObject

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and key."""
        return self.object.bucket, self.object.key


class AwaitedCopy(Copy, frozen=True):
    """A name that a fact refers to and that stands for nothing yet, by bucket and key."""

    kind: ClassVar[str] = "awaited_object"
    title: ClassVar[str] = "awaited names"
    bucket: str
    key: str

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and key."""
        return self.bucket, self.key


class LinkCopy(Copy, frozen=True):
    """A link to a peer, its seal included, by peer."""

    kind: ClassVar[str] = "link"
    title: ClassVar[str] = "links"
    link: Link

    @property
    def place(self) -> str:
        """The peer's zone."""
        return self.link.peer

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode(self._portable())

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return plain_record(LinkCopy(self._portable()))

    def _portable(self) -> Link:
        return replace(self.link, reason=_portable(self.link.reason))


class NoteCopy(Copy, frozen=True):
    """One entry of the operators' journal, the oldest first, counted from 1."""

    kind: ClassVar[str] = "note"
    title: ClassVar[str] = "notes of operators"
    position: int
    at: float
    action: str
    details: str

    may_leave: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

    @property
    def place(self) -> int:
        """Which entry it is."""
        return self.position

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode((self.at, self.action, _portable(self.details)))

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return {**super().document(), "details": _portable(self.details)}


class ZoneCopy(Copy, frozen=True):
    """Which store it is; it comes last, and the new store has the old one's epoch from then on."""

    kind: ClassVar[str] = "zone"
    title: ClassVar[str] = "epoch"
    info: StoreInfo

    may_leave: ClassVar[bool] = False

    @property
    def place(self) -> str:
        """The zone."""
        return self.info.zone

    @property
    def is_given(self) -> bool:
        """A store is always some zone's."""
        return True


JOB_KINDS: tuple[type[Copy], ...] = (QueueCopy, JobCopy, ScheduleCopy)
"""What a job store is made of, in the order of loading."""

FACT_KINDS: tuple[type[Copy], ...] = (
    LogCopy,
    FactCopy,
    IdCopy,
    GapCopy,
    ConsumerCopy,
    ItemCopy,
    NameCopy,
    AwaitedCopy,
    LinkCopy,
    NoteCopy,
    ZoneCopy,
)
"""What a fact store is made of, in the order of loading."""
