"""Records: what every store gives out and takes in, so that it can be copied into another.

A store is laid out as records of a few kinds, each in one order that every store keeps. A move
reads the records of both stores along that order, writes what is missing or differs, deletes what
is no longer there, and compares both sides once more at the end. The source store is never written,
and the target store has no other users during the move. ``ergon export`` writes the same records
into a file, and ``ergon import`` reads them out of one.

Every store has a part ``records``, which is a :class:`RecordStore`:

- ``dump`` reads a page of one kind, after a place. Pages are bounded by ``limit`` and by
  :data:`PAGE_BYTES`, whatever there is; an empty page is the end.
- ``load`` puts records of one kind in, in order and in one commit. Loading the same records again
  changes nothing: a move that was interrupted starts over and finds what it has written.
- ``discard`` takes records out that are no longer on the other side, in one commit.
- ``move_state`` and ``set_move_state`` keep the :class:`MoveState` in the store that is written,
  and in the store that was read when it is frozen afterwards.

A move whose process was suspended continues with its next write, whatever another run of the move
did in between. So every write takes a :class:`Fence`, which the store compares with its move state
within the transaction that writes.

A store that others reach can be frozen (:class:`Freezable`), one on a server without locks has a
lease for the one move that does so (:class:`MoveLease`), and one whose name may be written in
many ways, or be given to another one, has an id of its own (:class:`Identified`).

Records carry instants as they are: a lease that ran out on the way is rescued in the new store.
What is the same in every store is done once: ``jobs/stores/records.py``,
``boundary/factstore/records.py`` and, for stores on tables, ``boundary/factstore/sql/records.py``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from ergon_framework.errors import StoreError, StoreReadOnlyError
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
from ergon_framework.ports.flow import Flow, Join
from ergon_framework.ports.jobstore import Job, Schedule
from ergon_framework.ports.record_codec import plain, plain_record, read

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _portable(text: str) -> str:
    """A text as every store can keep it: PostgreSQL has none with a NUL in it."""
    return text.replace("\0", "\ufffd")


class TransferRecord(msgspec.Struct, frozen=True):
    """One record of a store, as a move or an export copies it."""

    kind: ClassVar[str] = ""
    """The name of the kind in a file of records."""
    title: ClassVar[str] = ""
    """The name of the kind shown to users, and in the state that a finished move writes."""
    has_shared_places: ClassVar[bool] = True
    """Whether places of two stores can be compared. Otherwise what is new comes last."""
    may_leave: ClassVar[bool] = True
    """Whether records of this kind are ever deleted. If not and one is missing, the store is
    another one.
    """
    may_change: ClassVar[bool] = True
    """Whether the same thing can differ one day; where it cannot and does, likewise."""
    holds_keys: ClassVar[bool] = False
    """Whether one can have what another had before: then what is gone goes first."""

    @property
    def sort_key(self) -> Any:
        """The position of the record in the order of its kind."""
        raise NotImplementedError

    @property
    def identity(self) -> Any:
        """The identity of the record in both stores: its position, unless positions differ between
        stores.
        """
        return self.sort_key

    @property
    def content(self) -> bytes:
        """The record as bytes that are equal for equal records of any store."""
        return _encode(self)

    @property
    def is_given(self) -> bool:
        """Whether every fresh store has it."""
        return False

    def document(self) -> dict[str, Any]:
        """The record as JSON that is equal for equal records of any store."""
        return plain_record(self)

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """What :meth:`document` made JSON of; ``ValueError`` says what does not fit."""
        return read(cls, document)


def record_line(copy: TransferRecord) -> bytes:
    """A record as one line of a file: its kind, its key, and all its fields."""
    key = _encode_json(plain(copy.identity, "key"))
    record = _encode_json(copy.document())
    return b'{"kind":"%b","key":%b,"record":%b}\n' % (copy.kind.encode(), key, record)


# ---- job stores ---------------------------------------------------------------------------------


_OF_THE_STORE: dict[str, Any] = {"key": None, "is_limited": False}
"""Fields of a job that each store fills by itself."""
_ADDED_LATER: dict[str, Any] = {"tags": [], "metadata": None, "unique": None}
"""Fields that are left out where a job has none, so that earlier versions read the record."""


class JobRecord(TransferRecord, frozen=True):
    """A job, in the order of adding. ``key`` of the job is its place; None: from the beginning.

    Loading: where its id is taken by a job of the same ``created_at``, that job becomes this one
    and stays where it stands; a job of another instant goes, and this one comes last, as one whose
    id is not there does. A waiting job that is due is due, also when it waited for its limit key
    (``is_limited`` is not copied); a running one keeps its worker, its fence and its lease. Fences
    that the store gives out from then on are higher. Two jobs that are loaded never hold the same
    unique key. No worker is notified.
    """

    kind: ClassVar[str] = "job"
    title: ClassVar[str] = "jobs"
    job: Job
    changed_at: float
    """When it was last moved; what ``Search.before`` means."""

    has_shared_places: ClassVar[bool] = False
    holds_keys: ClassVar[bool] = True

    @property
    def sort_key(self) -> Any:
        """The store's own number."""
        return self.job.key

    @property
    def content(self) -> bytes:
        """All but the store's own number, and what the store finds out by itself."""
        job = msgspec.structs.replace(self.job, key=None, is_limited=False)
        return _encode((job, self.changed_at))

    @property
    def identity(self) -> str:
        """The id."""
        return self.job.id

    def document(self) -> dict[str, Any]:
        """Without what :attr:`content` leaves out."""
        found = super().document()
        found["job"] = {
            name: value
            for name, value in found["job"].items()
            if name not in _OF_THE_STORE and (value or name not in _ADDED_LATER)
        }
        return found

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """A job as it is before a store has it."""
        job = document.get("job") if isinstance(document, dict) else None
        if isinstance(job, dict) and not job.keys() & _OF_THE_STORE.keys():
            document = {**document, "job": {**_ADDED_LATER, **job, **_OF_THE_STORE}}
        return super().from_document(document)


class _PlainQueue(msgspec.Struct, frozen=True):
    """What the record of a queue is where its limit keys have no limits and it has no pin."""

    queue: str
    is_paused: bool
    max_active: int | None
    rate: float | None
    burst: int
    full_at: float


class _QueueOfKeys(_PlainQueue, frozen=True):
    """The limits of a queue that limits each of its keys."""

    key_max_active: int | None
    key_rate: float | None
    key_burst: int
    key_full_at: dict[str, float]


class QueueRecord(TransferRecord, frozen=True):
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
    key_max_active: int | None = None
    key_rate: float | None = None
    key_burst: int = 1
    key_full_at: dict[str, float] = msgspec.field(default_factory=dict)
    """When the bucket of each limit key is full, for keys of which tokens were taken."""
    pinned_version: str | None = None
    """The version it is pinned to; None: workers of any version claim from it."""

    @property
    def sort_key(self) -> str:
        """The name."""
        return self.queue

    @property
    def content(self) -> bytes:
        """Without what later versions added, where it has none of that: as earlier ones wrote."""
        if self.pinned_version is not None:
            return _encode(self)
        own = self.queue, self.is_paused, self.max_active, self.rate, self.burst, self.full_at
        if not self._limits_keys:
            return _encode(_PlainQueue(*own))
        keys = self.key_max_active, self.key_rate, self.key_burst, self.key_full_at
        return _encode(_QueueOfKeys(*own, *keys))

    def document(self) -> dict[str, Any]:
        """The record as JSON."""
        found = super().document()
        if not self._limits_keys:
            found = {name: found[name] for name in found if name not in _OF_KEYS}
        if self.pinned_version is None:
            del found["pinned_version"]
        return found

    @property
    def _limits_keys(self) -> bool:
        return self.key_max_active is not None or self.key_rate is not None

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read a document, also one written before keys had limits, or queues a version."""
        if isinstance(document, dict):
            is_plain = not document.keys() & _OF_KEYS.keys()
            document = {**(_OF_KEYS if is_plain else {}), "pinned_version": None, **document}
        return super().from_document(document)


_OF_KEYS: dict[str, Any] = {
    "key_max_active": None,
    "key_rate": None,
    "key_burst": 1,
    "key_full_at": {},
}
"""Fields of a queue that are left out where its limit keys have no limits."""


class FlowRecord(TransferRecord, frozen=True):
    """A flow with its joins, by id. Its steps are jobs, which say where they wait and count.

    Loading: the flow of that id becomes this one, with these joins and this work, and keeps its
    place among the flows; one that is not there comes last. Ids begin with an instant, so that
    their order is that of adding. Discarding a flow leaves its steps alone: each has a record.
    """

    kind: ClassVar[str] = "flow"
    title: ClassVar[str] = "flows"
    flow: Flow
    joins: tuple[Join, ...]
    """The joins of the flow, in the order in which they were added."""
    work: dict[str, str]
    """What is left to be done in slices: what, by the id of the join or flow it is done to. The new
    store begins it anew, for numbers of steps are each store's own: a sweep meets steps again that
    it has been through, and changes those of them that have failed since."""

    @property
    def sort_key(self) -> str:
        """The id."""
        return self.flow.id

    @property
    def payload_size(self) -> int:
        """How many bytes its plan and its joins have."""
        return len(self.flow.plan) + sum(len(join.members) for join in self.joins)


_ADDED_TO_SCHEDULES: dict[str, Any] = {"jitter": 0.0, "ends_at": None}
"""Fields that the first version of the format does not have; left out where they say nothing."""


def _without(defaults: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k not in defaults or v != defaults[k]}


class ScheduleRecord(TransferRecord, frozen=True):
    """A schedule, by name."""

    kind: ClassVar[str] = "schedule"
    title: ClassVar[str] = "schedules"
    schedule: Schedule

    @property
    def sort_key(self) -> str:
        """The name."""
        return self.schedule.name

    @property
    def content(self) -> bytes:
        """The record as bytes; without jitter and end, those of an earlier version."""
        fields = msgspec.structs.asdict(self.schedule)
        # In the order of the class, as a record without these fields is encoded.
        return msgspec.msgpack.encode({"schedule": _without(_ADDED_TO_SCHEDULES, fields)})

    def document(self) -> dict[str, Any]:
        """Without what :attr:`content` leaves out."""
        found = super().document()
        found["schedule"] = _without(_ADDED_TO_SCHEDULES, found["schedule"])
        return found

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """With what an older file does not have."""
        schedule = document.get("schedule") if isinstance(document, dict) else None
        if isinstance(schedule, dict):
            document = {**document, "schedule": {**_ADDED_TO_SCHEDULES, **schedule}}
        return super().from_document(document)


# ---- fact stores --------------------------------------------------------------------------------


class LogRecord(TransferRecord, frozen=True):
    """A log with everything that does not follow from its kept facts, by its number: ``outbound``
    is 1.

    The number is part of the hash chain (see ``boundary/factstore/hashchain.py``), so it is kept.
    Loading: a log that exists and was truncated further in the source since is truncated as well,
    whatever its consumers have read, and without a gap. A log without facts of its own becomes what
    the copy says.
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
    def sort_key(self) -> int:
        """The number."""
        return self.number

    @property
    def is_given(self) -> bool:
        """Whether this is the empty ``outbound`` log, which every store has."""
        return self.log == OUTBOUND and self.first == 1


class FactRecord(TransferRecord, frozen=True):
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
    """The number of the log."""
    log: str
    fact: StoredFact
    chain: bytes
    """The hash chain after it."""

    may_leave: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

    @property
    def sort_key(self) -> tuple[int, int]:
        """Log and offset."""
        return self.number, self.fact.offset


class FactIdRecord(TransferRecord, frozen=True):
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
    def sort_key(self) -> bytes:
        """The key; ``b""`` comes before all."""
        return self.key


class GapRecord(TransferRecord, frozen=True):
    """A recorded loss, by log, beginning and end; only a gap of the store's own ever widens."""

    kind: ClassVar[str] = "gap"
    title: ClassVar[str] = "gaps"
    gap: Gap

    @property
    def sort_key(self) -> tuple[str, int, int, str, float]:
        """All fields of its key."""
        gap = self.gap
        return gap.log, gap.first, gap.last, gap.reason, gap.at


class ConsumerCursorRecord(TransferRecord, frozen=True):
    """A consumer with its lease, by name; ``lag`` and ``waiting_since`` are left out (0, None)."""

    kind: ClassVar[str] = "consumer"
    title: ClassVar[str] = "consumers"
    consumer: ConsumerInfo

    @property
    def sort_key(self) -> str:
        """The name."""
        return self.consumer.name


class QuarantineRecord(TransferRecord, frozen=True):
    """A quarantined item in any state, by its number, which it keeps."""

    kind: ClassVar[str] = "quarantined"
    title: ClassVar[str] = "quarantined facts"
    item: Quarantined
    is_served: bool
    """Whether the item was released and has been served since."""

    @property
    def sort_key(self) -> int:
        """The number."""
        return self.item.id

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode((self._portable(), self.is_served))

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return plain_record(QuarantineRecord(self._portable(), self.is_served))

    def _portable(self) -> Quarantined:
        item = self.item
        return replace(item, reason=_portable(item.reason), message=_portable(item.message))


class ObjectNameRecord(TransferRecord, frozen=True):
    """The name of an object, by bucket and key."""

    kind: ClassVar[str] = "object"
    title: ClassVar[str] = "names of objects"
    object: StoredObject

    @property
    def sort_key(self) -> tuple[str, str]:
        """Bucket and key."""
        return self.object.bucket, self.object.key


class AwaitedObjectRecord(TransferRecord, frozen=True):
    """A name that a fact refers to and that stands for nothing yet, by bucket and key."""

    kind: ClassVar[str] = "awaited_object"
    title: ClassVar[str] = "awaited names"
    bucket: str
    key: str

    @property
    def sort_key(self) -> tuple[str, str]:
        """Bucket and key."""
        return self.bucket, self.key


class LinkRecord(TransferRecord, frozen=True):
    """A link to a peer, its seal included, by peer."""

    kind: ClassVar[str] = "link"
    title: ClassVar[str] = "links"
    link: Link

    @property
    def sort_key(self) -> str:
        """The peer's zone."""
        return self.link.peer

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode(self._portable())

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return plain_record(LinkRecord(self._portable()))

    def _portable(self) -> Link:
        return replace(self.link, reason=_portable(self.link.reason))


class JournalRecord(TransferRecord, frozen=True):
    """An entry of the operators' journal. The oldest has the number 1."""

    kind: ClassVar[str] = "note"
    title: ClassVar[str] = "notes of operators"
    position: int
    at: float
    action: str
    details: str

    may_leave: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

    @property
    def sort_key(self) -> int:
        """Which entry it is."""
        return self.position

    @property
    def content(self) -> bytes:
        """All of it, the words as every store can keep them."""
        return _encode((self.at, self.action, _portable(self.details)))

    def document(self) -> dict[str, Any]:
        """All of it, the words as every store can keep them."""
        return {**super().document(), "details": _portable(self.details)}


class ZoneEpochRecord(TransferRecord, frozen=True):
    """Which store it is; it comes last, and the new store has the old one's epoch from then on."""

    kind: ClassVar[str] = "zone"
    title: ClassVar[str] = "epoch"
    info: StoreInfo

    may_leave: ClassVar[bool] = False

    @property
    def sort_key(self) -> str:
        """The zone."""
        return self.info.zone

    @property
    def is_given(self) -> bool:
        """A store is always some zone's."""
        return True


JOB_KINDS: tuple[type[TransferRecord], ...] = (QueueRecord, FlowRecord, JobRecord, ScheduleRecord)
"""What a job store is made of, in the order of loading: a flow is there before its steps."""

FACT_KINDS: tuple[type[TransferRecord], ...] = (
    LogRecord,
    FactRecord,
    FactIdRecord,
    GapRecord,
    ConsumerCursorRecord,
    QuarantineRecord,
    ObjectNameRecord,
    AwaitedObjectRecord,
    LinkRecord,
    JournalRecord,
    ZoneEpochRecord,
)
"""What a fact store is made of, in the order of loading."""


PAGE_BYTES = 4 << 20
"""About how many bytes of payloads a page has at most; one copy is always given, however large."""

FILE_OF_RECORDS = "records "
"""How the source of a state begins that an import left; the digest of the file's lines follows."""

C = TypeVar("C", bound=TransferRecord)
T = TypeVar("T")


def as_page(sized: Iterable[tuple[T, int]]) -> list[T]:
    """The first of sized items that fit into :data:`PAGE_BYTES`; one in any case."""
    page: list[T] = []
    left = PAGE_BYTES
    for each, size in sized:
        left -= size
        # At least one, however large it is: the next page begins behind the last of this one.
        if page and left < 0:
            break
        page.append(each)
    return page


WORK = "jobs and provider calls"
"""What the part of a program is called that is in the store of ``[store]`` itself."""


class ProgramMove(msgspec.Struct, frozen=True):
    """The move of everything that a program keeps: its parts are moved and opened again together.

    One part alone that is opened again would be in use in two places, for the rest of the program
    works with the new store.
    """

    settings: str
    """The file that stands for the program, ``ergon.toml`` or ``ergon.db``; an absolute path."""
    to: str
    """What ``--to`` was, without a password."""
    sources: tuple[str, ...] = ()
    """The parts that were moved, each with its old place: ``facts of plant of PLACE``."""
    is_undone: bool = False
    """Whether the old stores were opened again, and it is the new ones that are shut."""

    @property
    def settings_file(self) -> str:
        """Where a line under ``[store]`` is written: a script without settings gets such a file."""
        path = Path(self.settings)
        return self.settings if path.suffix == ".toml" else str(path.with_name("ergon.toml"))

    @property
    def old_store(self) -> str:
        """The URL of the store that the program used before, without a password; empty: unknown."""
        for source in self.sources:
            what, _, place = source.rpartition(" of ")
            if what == WORK:
                return place if "://" in place else f"sqlite:///{place}"
        return ""

    @property
    def old_line(self) -> str:
        """What was under ``[store]`` before the move, as far as that is known."""
        old = self.old_store
        return f"url = {_encode_json(old).decode()}" if old else "the url from before the move"

    def command(self, *, reopens: bool = False) -> str:
        """What moves all of the program, or opens all of its old stores again."""
        options = " --reopen" if reopens else ""
        return f"ergon move {shlex.quote(self.settings)} --to {shlex.quote(self.to)}{options}"


_MORE = " ergon:"
"""What comes between the place and the rest in the text of a destination."""


class Destination(msgspec.Struct, frozen=True):
    """Where the content of a store was moved, for the errors that later users of the store get."""

    place: str
    zone: str = ""
    """Whose facts the store has; empty for jobs and provider calls."""
    program: ProgramMove | None = None
    """The move of a whole program, of which the store was a part."""
    is_undone: bool = False
    """Whether the store is the copy, and was shut because the old one was opened again."""
    store_id: str = ""
    """The id of the target store, whichever URL reaches it; empty where the store has none."""

    @property
    def text(self) -> str:
        """One line that a store keeps, and that its refusals are made of (see ``freeze``).

        A version that does not know the rest takes all of it for the place.
        """
        rest: dict[str, Any] = {"zone": self.zone} if self.zone else {}
        if self.program is not None:
            rest["program"] = [self.program.settings, self.program.to]
            rest["is_undone"] = self.program.is_undone
        elif self.is_undone:
            rest["is_undone"] = True
        return f"{self.place}{_MORE}{_encode_json(rest).decode()}" if rest else self.place

    @classmethod
    def of_text(cls, text: str) -> Destination:
        """What :attr:`text` was made of; an earlier version wrote the place alone."""
        place, mark, rest = text.rpartition(_MORE)
        if mark:
            with suppress(msgspec.DecodeError, TypeError):
                parsed = msgspec.json.decode(rest, type=_DestinationText)
                program = None
                if parsed.program is not None:
                    program = ProgramMove(*parsed.program, is_undone=parsed.is_undone)
                return cls(place, parsed.zone, program, parsed.is_undone)
        return cls(text)

    @property
    def details(self) -> dict[str, Any]:
        """What an error says of it to programs."""
        fields: dict[str, Any] = {"moved_to": self.place}
        if self.program is not None:
            fields["program"] = {
                "settings": self.program.settings,
                "to": self.program.to,
                "is_undone": self.program.is_undone,
            }
        elif self.is_undone:
            fields["is_undone"] = True
        return fields

    @classmethod
    def of_details(cls, details: Mapping[str, Any]) -> Destination | None:
        """The destination that the details of an error name; None when they name no move."""
        place = details.get("moved_to")
        if not place:
            return None
        program = details.get("program")
        return cls(
            str(place),
            program=None if program is None else ProgramMove(**program),
            is_undone=bool(details.get("is_undone")),
        )

    def undo_command(self, source: str = "") -> str:
        """The command that lets the store be used again; ``source`` is it as a shell takes it.

        A store that was moved with the rest of a program is opened again with the rest. A copy is
        opened by moving again, which also shuts the old store and brings along what was done there.
        """
        if self.program is not None:
            return self.program.command(reopens=not self.program.is_undone)
        options = f" --zone {shlex.quote(self.zone)}" if self.zone else ""
        if self.is_undone:
            return shut_command(place_operand(self.place), source or "TO", self.zone)
        return f"ergon move {source or 'FROM'} {place_operand(self.place)}{options} --reopen"

    @property
    def undo_condition(self) -> str:
        """Which line has to be in the settings of a program for the command that undoes it."""
        is_undone = self.program is not None and self.program.is_undone
        return f"{'once that' if is_undone else 'while the old'} line is under [store]"

    @property
    def login_hint(self) -> str:
        """How the command gets the password of a server."""
        return login_hint(self.place if self.program is None else self.program.to)


class _DestinationText(msgspec.Struct):
    zone: str = ""
    program: tuple[str, str] | None = None
    is_undone: bool = False


class MoveState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a move leaves in the store that it writes, and in the one that it shuts.

    What it has nothing to say of is not written: programs of earlier versions read it, too.
    """

    source: str = ""
    """What the other store is known by, of which this one is a copy; empty when it is none."""
    sums: dict[str, tuple[int, str]] | None = None
    """When it was done: for each kind how many there were, and the digest over them."""
    moved_to: str = ""
    """Where everything went since; empty while this store is the one to work with."""
    birth: str = ""
    """The birth of the other store; empty where it reported none."""
    token: str = ""
    """Which run of a move writes into this store, or was the last to do so."""
    program: ProgramMove | None = None
    """The move of a whole program that fills this store, or has filled it."""
    moved_with: ProgramMove | None = None
    """The move of a whole program that shuts this store, or has shut it."""
    is_undone: bool = False
    """Whether this copy was shut because the store that it was made of was opened again."""
    moved_to_id: str = ""
    """The id of the store that everything went to, whatever it is called; empty if unknown."""

    @property
    def destination(self) -> Destination | None:
        """Where everything went since; None while this store is the one to work with."""
        if not self.moved_to:
            return None
        return Destination(
            self.moved_to,
            program=self.moved_with,
            is_undone=self.is_undone,
            store_id=self.moved_to_id,
        )

    @property
    def is_incomplete(self) -> bool:
        """Whether a move into the store has begun and not ended."""
        return bool(self.source) and self.sums is None

    @property
    def is_import(self) -> bool:
        """Whether what fills the store comes out of a file."""
        return self.source.startswith(FILE_OF_RECORDS)

    @property
    def what_is_incomplete(self) -> str:
        """What has not ended, when something has not."""
        return "an import" if self.is_import else "a move"

    @property
    def resume_remedy(self) -> str:
        """What ends it."""
        if self.program is not None:
            return f"run `{self.program.command()}` again{login_hint(self.program.to)}"
        return f"run the same `ergon {'import' if self.is_import else 'move'}` again"


class OvertakenMoveError(StoreError):
    """A write was refused because another run of a move has written its state there since."""


class Fence(msgspec.Struct, frozen=True):
    """The condition of a write: the move state of the store is still the one that is given here.

    Every run of a move writes a token of its own into the state before anything else. So a run that
    was overtaken never finds the state that it knows.
    """

    state: bytes | None
    """What the run read in the store when it began, or wrote there last; None: nothing."""

    def check(self, found: bytes | None) -> None:
        """Raise ``OvertakenMoveError`` unless the store's state is the one of this fence."""
        if found != self.state:
            raise overtaken()

    def check_change(self, found: bytes | None, new: bytes | None) -> None:
        """Check the fence for a new state. A repeated change may have been made already."""
        if found != new:
            self.check(found)


def overtaken() -> OvertakenMoveError:
    """The error of a run that another one has overtaken."""
    return OvertakenMoveError(
        "another move wrote into the store while this one was under way, or was stopped: this one"
        " writes nothing more",
        remedy="see what the other one says",
    )


class RecordReader(Protocol):
    """Records that can be read."""

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place (None: from the beginning), in order."""


@runtime_checkable
class RecordStore(RecordReader, Protocol):
    """A store that can be copied.

    With a fence, a write is made only if the fence allows it, which the store finds out within the
    transaction of the write: no other move can write between the two. Otherwise the store changes
    nothing and raises ``OvertakenMoveError``.
    """

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order and in one commit."""

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind in one commit, those of them that are there.

        Callers never name records that must not be deleted.
        """

    def move_state(self) -> bytes | None:
        """What was written down about a move into this store."""

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Write something down about a move into this store, or forget it."""


@runtime_checkable
class Freezable(Protocol):
    """A store that can refuse its users in every process, even those that have it open already."""

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse changes from now on, naming where everything went; None: let them in again.

        ``place`` is the :attr:`~Destination.text` of a destination, which is kept as it is.
        ``StoreReadOnlyError`` is raised where something would be added, claimed, settled or
        appended. Reading goes on, and marks can be set. The same again changes nothing.
        """


@runtime_checkable
class JointMoveState(Protocol):
    """Provider calls, beside which a database may have jobs."""

    def set_move_states(self, marks: Sequence[bytes], fences: Sequence[Fence]) -> None:
        """Write down the marks of provider calls and of the jobs there, in one commit."""


@runtime_checkable
class MoveLease(Protocol):
    """A store on a server without locks, which remembers the one move that may shut or open it."""

    def lease_move(self, token: str, seconds: float, *, renews: bool = False) -> bool:
        """Take the lease for a time; False when another token has it. 0 seconds give it back.

        With ``renews`` it must be this token's still: one that ran out may have been another's
        meanwhile. Time is the server's.
        """


@runtime_checkable
class Identified(Protocol):
    """A store with an id of its own, which a store that replaces it under the same name does not
    have.
    """

    def store_id(self) -> str:
        """What this very store has since it was made, however it is reached; empty if unknown.

        It is not copied by a move, and outlives all that the store holds.
        """


def records_of(store: object) -> RecordStore:
    """The ``records`` part of a store; ``StoreError`` where there is none."""
    found = find_records(store)
    if found is None:
        raise StoreError(
            f"{type(store).__name__} cannot be copied: it has no part `records`",
            remedy="give it one that is a RecordStore of ergon_framework.ports.transfer",
        )
    return found


def find_records(store: object) -> RecordStore | None:
    """The ``records`` part of a store, or the store where it is nothing else; None: neither."""
    found = getattr(store, "records", store)
    return found if isinstance(found, RecordStore) else None


_decode = msgspec.json.Decoder(MoveState).decode
_encode_json = msgspec.json.Encoder().encode
encode_move_state = _encode_json


def move_state_of(store: object) -> MoveState:
    """What was written down in a store; nothing for one that is neither copy nor shut."""
    records = find_records(store)
    return read_move_state(None if records is None else records.move_state())


def store_id_of(store: object) -> str:
    """The id of a store; empty where it has none."""
    records: object = find_records(store)
    return records.store_id() if isinstance(records, Identified) else ""


def read_move_state(found: bytes | None) -> MoveState:
    """What bytes of a state say."""
    return MoveState() if found is None else _decode(found)


def is_incomplete(store: object) -> bool:
    """Whether a move into a store has begun and not ended."""
    return move_state_of(store).is_incomplete


def refuse_unusable(state: MoveState, source: str = "", zone: str = "") -> None:
    """Work with no store that a move has not filled yet, or whose things went elsewhere.

    In both, what is done would be missing where it is looked for, or be done twice. ``source`` is
    the store as a shell takes it, for the command that undoes it.
    """
    if state.is_incomplete:
        raise incomplete(state)
    if state.destination is not None:
        raise moved_away("this store", state.destination, source, zone)


def incomplete(state: MoveState) -> StoreError:
    """The error of a store that a move or an import has not filled yet."""
    return StoreError(
        f"{state.what_is_incomplete} into this store has not ended",
        remedy=f"{state.resume_remedy}: it goes on where it was cut off",
    )


def moved_away(
    name: str, gone: Destination | str, source: str = "", zone: str = ""
) -> StoreReadOnlyError:
    """The error of a store that was shut when all it held had been moved.

    ``gone`` is where, or the text of it that the store was given to keep. ``source`` is the store
    as a shell takes it, for the command that opens it again.
    """
    found = Destination.of_text(gone) if isinstance(gone, str) else gone
    found = msgspec.structs.replace(found, zone=found.zone or zone)
    return StoreReadOnlyError(
        f"what {name} held was moved to {found.place}",
        remedy=_remedy(found, source),
        details=found.details,
    )


def _remedy(gone: Destination, source: str) -> str:
    undo = f"`{gone.undo_command(source)}`"
    if gone.program is not None:
        return (
            f"work with that one: name it as url under [store] in {gone.program.settings_file}, and"
            " start the program again; all parts of the program were moved together, and"
            f" {undo} lets this one be used again with all others, {gone.undo_condition}"
            f"{gone.login_hint}"
        )
    meaning = ""
    if not source:
        meaning = f", {'TO' if gone.is_undone else 'FROM'} being the URL of this store,"
    return (
        "work with that one: name it where the settings name this store (url under [store], say),"
        f" and start the program again; {undo}{meaning} lets this one be used again"
        f"{' and shuts that one' if gone.is_undone else ''}{gone.login_hint}"
    )


def shut_command(source: str, target: str, zone: str = "") -> str:
    """The command that moves and shuts; the operands are as a shell takes them.

    Of a zone in a folder the folders are named: its objects lie there, and come along.
    """
    options = f" --zone {shlex.quote(zone)}" if zone else ""
    folders = [_zone_folder(operand) for operand in (source, target)]
    if zone and all(folders):
        source, target = map(shlex.quote, folders)
    return f"ergon move {source} {target}{options} --shut"


def _zone_folder(operand: str) -> str:
    """The folder whose facts an operand names; empty when it names something else."""
    file = "".join(shlex.split(operand)).removeprefix("sqlite:///")
    is_facts = "://" not in file and file.endswith("/facts.db")
    return file.removesuffix("/facts.db") if is_facts else ""


def place_operand(place: str) -> str:
    """A place as an operand of a command; a file is known by its path."""
    return shlex.quote(place if "://" in place else f"sqlite:///{place}")


def login_hint(*places: str) -> str:
    """How a command gets the password of a server that it names; stores are known without it."""
    kinds = {place.partition("://")[0] for place in places if "://" in place}
    if any(kind.startswith("postgres") for kind in kinds):
        return " (PostgreSQL takes a password from PGPASSWORD or ~/.pgpass)"
    if kinds - {"sqlite"}:
        return " (with user and password in the URL, if the server asks for them)"
    return ""
