"""One transaction on a stream: the records that it reads, and the messages that it writes.

A transaction reads records, decides, and collects messages. They are committed if the stream still
ends where it ended when the transaction began; otherwise the transaction is run again on what the
stream holds then. Records stay cached for later transactions until another process writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ergon_framework.boundary.factstore.hashchain import PreparedFact
from ergon_framework.boundary.factstore.nats.schema import (
    Counters,
    EntryPosition,
    JournalNote,
    Known,
    LogEntry,
    LogState,
    Subjects,
    decode,
    encode,
    encode_id,
    read_entry,
    read_id,
    repaired_entry,
)
from ergon_framework.errors import StoreBrokenError
from ergon_framework.ports.factstore import OUTBOUND
from ergon_framework.storage.nats import NatsStream, Stored, StreamMessage

MAX_CACHED = 5_000
"""Records that are cached, and places of entries; then the cache begins anew."""
WRITES_BEFORE_TRIM = 50
"""Writes after which earlier messages of a record are removed."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A record as it lies in the stream."""

    data: bytes
    seq: int
    """0 when there is none."""


class RecordCache:
    """Records that are known to be the newest as long as the stream ends at ``last``."""

    def __init__(self) -> None:
        self.highest = 0
        """The highest sequence at which the stream was ever seen to end."""
        self._last = -1
        self.records: dict[str, StreamRecord] = {}
        self.lists: dict[str, set[str]] = {}
        self.log_states: dict[str, LogState] = {}
        """Logs with their young entries."""
        self.places: dict[tuple[str, int], EntryPosition] = {}
        """The positions of entries. Entries never move, so only a server that loses messages makes
        them wrong.
        """
        self._written: Counter[str] = Counter()
        """How often this process wrote each record since its old messages were trimmed."""

    @property
    def last(self) -> int:
        """Where the stream ends; -1 when that is not known."""
        return self._last

    @last.setter
    def last(self, last: int) -> None:
        self._last = last
        self.highest = max(self.highest, last)

    def forget(self, last: int) -> None:
        """Drop cached records: another process has written, up to ``last``."""
        self.last = last
        self.records.clear()
        self.lists.clear()
        self.log_states.clear()

    def begin_anew(self, last: int) -> None:
        """Drop everything: the server may have lost messages, and other ones take their place."""
        self.highest, self.places = 0, {}  # a new dict: transactions under way keep the old one
        self.forget(last)

    def add(self, records: Mapping[str, StreamRecord]) -> None:
        """Cache records that were just written."""
        self.records |= records
        self._written.update(list(records))
        for subjects, listed in self.lists.items():
            listed.update(each for each in records if matches(subjects, each))
        if len(self.records) > MAX_CACHED:
            self.records.clear()
            self.lists.clear()
        if len(self.places) > MAX_CACHED:
            self.places.clear()

    def records_to_trim(self) -> list[str]:
        """Records that were written often enough for their old messages to be trimmed."""
        found = [each for each, count in self._written.items() if count >= WRITES_BEFORE_TRIM]
        for each in found:
            del self._written[each]
        if len(self._written) > MAX_CACHED:
            self._written.clear()
        return found

    def follow(self, subject: str, record: StreamRecord) -> None:
        """Cache a record that was written without looking at where the stream ended."""
        if record.seq == self.last + 1:
            self.last = record.seq
            self.add({subject: record})
        else:
            self.forget(-1)  # other messages came between, and this process has not read them

    def view(self) -> RecordCache:
        """A copy, for a transaction that only reads while others write."""
        seen = RecordCache()
        seen.last, seen.places = self.last, self.places
        seen.records, seen.log_states = dict(self.records), dict(self.log_states)
        seen.lists = {subjects: set(listed) for subjects, listed in self.lists.items()}
        return seen

    def adopt_records(self, seen: RecordCache) -> None:
        """Adopt the records of a reading transaction, unless the stream has grown since."""
        if seen.last == self.last:
            self.records |= seen.records
            self.lists |= seen.lists
            self.log_states |= seen.log_states


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern with ``*``."""
    wanted, words = pattern.split("."), subject.split(".")
    return len(wanted) == len(words) and all(
        one in {"*", word} for one, word in zip(wanted, words, strict=True)
    )


T = TypeVar("T")

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
MAX_YOUNG = 32
"""Entries of a log whose ids are not in the ledger yet. A process that opens the log has to read
them, so there are few."""
GONE = b""
"""The content of a record that was deleted."""


class StreamTransaction:
    """The records of a zone, for one step."""

    def __init__(
        self, stream: NatsStream, subjects: Subjects, memory: RecordCache, *, is_sure: bool
    ) -> None:
        self.stream = stream
        self.subjects = subjects
        self.is_sure = is_sure
        """Whether the stream was seen to end where the cache says."""
        self.is_moving = False
        """Whether facts of another store are copied here, whose ids may be there already."""
        self.is_longer = 0
        """How many entries this step adds."""
        self.is_doubtful = False
        """Whether an entry was missing: damage, unless another process was just truncating."""
        self.memory = memory
        self._puts: dict[str, bytes] = {}
        self._entries: list[StreamMessage] = []
        self._others: list[StreamMessage] = []
        self._log_states: dict[str, LogState] = {}
        self._asked: dict[int, Stored] = {}
        """Entries that were read for ids in question, by their sequences."""

    # ---- records --------------------------------------------------------------------------------

    def get(self, kind: type[T], subject: str) -> T | None:
        """The record at a subject, or None."""
        data = self._puts.get(subject)
        if data is None:
            self.fetch([subject])
            data = self.memory.records[subject].data
        return decode(kind, data) if data else None

    def all(self, kind: type[T], subjects: str) -> dict[str, T]:
        """Every record that matches."""
        listed = self.memory.lists.get(subjects)
        if listed is None:
            listed = self.memory.lists[subjects] = set(self._read([subjects]))
        new = {each for each in self._puts if matches(subjects, each)}
        every = {each: self._data(each) for each in sorted(listed | new)}
        return {subject: decode(kind, data) for subject, data in every.items() if data}

    def fetch(self, subjects: Sequence[str]) -> None:
        """Read records in one round trip, which are then got one by one."""
        missing = [each for each in subjects if each not in self.memory.records]
        if missing:
            absent = set(missing) - set(self._read(missing))
            # What is not there is cached as well: most ids that are asked for are new.
            self.memory.records |= dict.fromkeys(absent, StreamRecord(GONE, 0))

    def _read(self, subjects: Sequence[str]) -> list[str]:
        found = self.stream.latest(subjects)
        self.memory.records |= {each.subject: StreamRecord(each.data, each.seq) for each in found}
        return [each.subject for each in found]

    def put(self, subject: str, record: object | None) -> None:
        """Write a record, or take it away."""
        self._puts[subject] = GONE if record is None else encode(record)

    def _data(self, subject: str) -> bytes:
        data = self._puts.get(subject)
        return self.memory.records[subject].data if data is None else data

    @property
    def tally(self) -> Counters:
        """Counters of the whole store."""
        return self.get(Counters, self.subjects.tally) or Counters()

    def note(self, now: float, action: str, details: str) -> None:
        """Write down what an operator did."""
        tally = self.tally
        tally.notes += 1
        self.put(self.subjects.tally, tally)
        self.put(self.subjects.note(tally.notes), JournalNote(now, action, details))

    # ---- logs -----------------------------------------------------------------------------------

    def log_state(self, log: str) -> LogState | None:
        """A log, whose changes are written at the end of the step; None when there is none."""
        found = self._log_states.get(log)
        if found is None:
            kept = self.memory.log_states.get(log) or self._load(log)
            if kept is None:
                return None
            self.memory.log_states[log] = kept
            # A copy: a step that is run again must begin with what the stream says.
            found = self._log_states[log] = kept.copy()
        return found

    def _load(self, log: str) -> LogState | None:
        """A log by its record and the entries that were added since."""
        log_state = self.get(LogState, self.subjects.log_state(log))
        if log_state is None:
            return None
        start = max(log_state.head_seq + 1, log_state.first_seq)
        for found in self.stream.walk(self.subjects.entries(log), start):
            entry = read_entry(log_state.number, found.seq, found.data)
            if entry is None:
                raise StoreBrokenError(
                    f"one of the last facts of {log} cannot be read, so nobody knows its offset",
                    remedy="restore the stream from a backup",
                    details={"log": log, "sequence": found.seq},
                )
            if entry.offset > log_state.head:
                log_state.grow(entry)
        return log_state

    def log_state_or_new(self, log: str) -> LogState:
        """A log, created if it does not exist."""
        found = self.log_state(log)
        if found is None:
            tally = self.tally
            tally.logs += 1
            self.put(self.subjects.tally, tally)
            found = self._log_states[log] = LogState(log, tally.logs)
        return found

    def log_states(self) -> list[LogState]:
        """Every log, ``outbound`` first."""
        names = [each.name for each in self.all(LogState, self.subjects.log_states).values()]
        found = (self.log_state(name) for name in {*names, *self._log_states})
        logs = [each for each in found if each is not None]
        return sorted(logs, key=lambda log_state: (log_state.name != OUTBOUND, log_state.name))

    def replace_log_state(self, log_state: LogState) -> None:
        """Replace the state of a log, when a move places it."""
        self._log_states[log_state.name] = log_state

    @property
    def next_seq(self) -> int:
        """Where the next entry will be: entries are the first that a step writes."""
        return self.memory.last + len(self._entries) + 1

    def add(self, log_state: LogState, entry: StreamMessage, key: bytes, known: Known) -> None:
        """Write an entry. Its id stays young: it is written to the ledger later, with others."""
        self._entries.append(entry)
        log_state.young[key] = known
        self.is_longer += 1

    def add_id(self, key: bytes, known: Known) -> None:
        """Write an id alone, which must not be there yet."""
        data = encode_id(known)
        # Refused if the id is there by now, so that no id is entered twice, whatever the cache
        # says.
        self._others.append(StreamMessage(self.subjects.id(key), data, {EXPECTED: "0"}))

    def entry(self, log_state: LogState, found: Stored) -> LogEntry | None:
        """An entry out of its message."""
        entry = read_entry(log_state.number, found.seq, found.data)
        if entry is None or entry.seal is None:
            entry = self._repaired(log_state, found.seq) or entry
        if entry is not None:
            self.remember(log_state, entry)
        return entry

    def _repaired(self, log_state: LogState, seq: int) -> LogEntry | None:
        """The repaired copy of a damaged entry, if there is one."""
        found = self.stream.last(self.subjects.repair(log_state.name, seq))
        return None if found is None else read_entry(log_state.number, seq, found.data)

    def known_entry(self, log_state: LogState, known: Known) -> LogEntry | None:
        """The entry of an id that was asked for in this step, as far as it can be read."""
        stored = self._asked.get(known.seq)
        return None if stored is None else self.entry(log_state, stored)

    def repair(self, log_state: LogState, known: Known, duplicate: PreparedFact) -> LogEntry | None:
        """Restore a damaged entry from a duplicate of its fact; None when that is not possible."""
        stored = self._asked.get(known.seq)
        data = None if stored is None else repaired_entry(log_state.number, stored.data, duplicate)
        if data is None:
            return None
        self._others.append(StreamMessage(self.subjects.repair(log_state.name, known.seq), data))
        return read_entry(log_state.number, known.seq, data)

    def remember(self, log_state: LogState, entry: LogEntry) -> None:
        """Cache where an entry is."""
        self.memory.places[log_state.name, entry.offset] = EntryPosition(entry.seq, entry.chain)

    def remembered(self, log_state: LogState, offset: int) -> EntryPosition | None:
        """Where an entry is, if that is known."""
        return self.memory.places.get((log_state.name, offset))

    # ---- the ledger -----------------------------------------------------------------------------

    def known(self, keys: Collection[bytes], logs: Iterable[str]) -> dict[bytes, Known]:
        """What these logs and the ledger say about ids; unknown ones are left out."""
        log_states = [each for each in map(self.log_state, logs) if each is not None]
        young = {key: known for log_state in log_states for key, known in log_state.young.items()}
        self._ask([young[key] for key in keys if key in young])
        return {**self._sealed([key for key in keys if key not in young]), **young}

    def _ask(self, known: Iterable[Known]) -> None:
        """Read the entries of ids."""
        found = self.stream.at_each([each.seq for each in known])
        self._asked |= {each.seq: each for each in found if each is not None}

    def _sealed(self, keys: Sequence[bytes]) -> dict[bytes, Known]:
        found: dict[bytes, Known] = {}
        for each in self.stream.latest([self.subjects.id(key) for key in keys]):
            key = bytes.fromhex("".join(each.subject.split(".")[-3:]))
            found[key] = read_id(each.data)
        self._ask(found.values())
        for key, known in list(found.items()):
            stored = self._asked.get(known.seq)
            entry = None if stored is None else read_entry(0, stored.seq, stored.data)
            if entry is not None and entry.proof.digest.startswith(known.digest):
                found[key] = replace(known, envelope=entry.envelope)
        return found

    # ---- the end of the step --------------------------------------------------------------------

    def finish(self) -> bool:
        """Collect what is to be written for changed logs; whether there is anything to write.

        A transaction that adds one entry writes nothing else, as long as few entries are young: one
        message is the cheapest commit. Any other transaction writes the ids of all young entries
        to the ledger, and the states of the logs.
        """
        for log_state in self._log_states.values():
            kept = self.memory.log_states.get(log_state.name)
            if kept is not None and encode(kept) == encode(log_state):
                continue
            if self._is_plain():
                continue
            # A process that died between two batches may have left ids whose entries are here.
            is_sure = self.is_sure or self.is_moving
            there = self._sealed(list(log_state.young)) if is_sure else {}
            for key, known in log_state.young.items():
                if key not in there:
                    self.add_id(key, known)
                elif not there[key].seq:  # a move has copied the id before its fact
                    self._others.append(StreamMessage(self.subjects.id(key), encode_id(known)))
            log_state.young.clear()
            self._puts[self.subjects.log_state(log_state.name)] = encode(log_state)
        return bool(self._entries or self._others or self._puts)

    def _is_plain(self) -> bool:
        """Whether this step adds one entry and need not change anything else."""
        if self.is_moving or self._puts or self._others:
            return False
        is_young = all(len(log_state.young) <= MAX_YOUNG for log_state in self._log_states.values())
        return is_young and len(self._entries) == 1

    def messages(self) -> list[StreamMessage]:
        """All messages, entries first: their sequences follow from where the stream ends."""
        records = (StreamMessage(*each) for each in self._puts.items())
        return [*self._entries, *self._others, *records]

    def only(self, subject: str) -> StreamMessage | None:
        """The message of a transaction that writes only this record; None if it writes more.

        It is accepted only if the record has not been written since it was read.
        """
        if self._entries or self._others or self._puts.keys() != {subject}:
            return None
        # The record's own sequence, not the stream's end: other writers do not stand in the way.
        expected = {EXPECTED: str(self.memory.records[subject].seq)}
        return StreamMessage(subject, self._puts[subject], expected)

    def was_written(self, last: int) -> None:
        """Update the cache after a commit; ``last`` is where the stream ends now."""
        first = last - len(self.messages()) + 1
        seqs = {message.subject: first + n for n, message in enumerate(self.messages())}
        self.memory.log_states |= self._log_states
        self.memory.add({each: StreamRecord(data, seqs[each]) for each, data in self._puts.items()})
        self.memory.last = last
