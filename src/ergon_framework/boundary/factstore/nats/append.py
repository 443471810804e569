"""Facts on their way into logs, within one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ergon_framework.boundary.factstore.append_plan import Condition, KnownFact
from ergon_framework.boundary.factstore.hashchain import NOBODY, PreparedFact
from ergon_framework.boundary.factstore.nats.schema import Known, ObjectRecord, encode_entry
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.ports.factstore import NewFact, Reference
from ergon_framework.storage.nats import StreamMessage

MAX_REFERENCES_PER_COMMIT = 300
"""References of one fact, above which they are marked ahead of it."""


class StreamPlacement:
    """Turns facts into messages of the stream within one transaction."""

    def __init__(
        self, transaction: StreamTransaction, now: float, known: Mapping[bytes, Known]
    ) -> None:
        self.fresh: dict[bytes, tuple[int, NewFact]] = {}
        self._transaction = transaction
        self._now = now
        self._known = known

    def log(self, name: str) -> str:
        """A log by its name: it comes into being when a fact is placed."""
        return name

    def size(self, log: str) -> int:
        """The bytes that a log keeps."""
        log_state = self._transaction.log_state(log)
        return 0 if log_state is None else log_state.size

    def known(self, log: str, fact: PreparedFact) -> KnownFact | None:
        """What lies under the id of a fact; what is damaged is repaired by it, if it can be."""
        known = self._known.get(fact.key)
        if known is None:
            return None
        log_state = self._transaction.log_state(log)
        if log_state is None or known.offset < log_state.first:
            return KnownFact(known.offset, known.digest, Condition.GONE)
        entry = self._transaction.known_entry(log_state, known)
        if entry is None or entry.seal is not None:
            envelope = known.envelope if entry is None else entry.envelope
            return KnownFact(known.offset, known.digest, Condition.INTACT, envelope)
        is_same = fact.new.digest.startswith(known.digest)
        repaired = self._transaction.repair(log_state, known, fact) if is_same else None
        if repaired is None:
            return KnownFact(known.offset, known.digest, Condition.DAMAGED)
        return KnownFact(known.offset, known.digest, Condition.REPAIRED, repaired.envelope)

    def object(self, wanted: Reference) -> Reference | None:
        """What the name that a fact mentions stands for."""
        found = self._transaction.get(
            ObjectRecord, self._transaction.subjects.object(wanted.bucket, wanted.key)
        )
        if found is None or not found.digest:
            return None
        return Reference(found.bucket, found.key, found.digest, found.size)

    def place(self, log: str, fact: PreparedFact) -> int:
        """Append a new fact to a log; returns its offset."""
        transaction, new = self._transaction, fact.new
        log_state = transaction.log_state_or_new(log)
        if new.references:
            refer([(each.bucket, each.key) for each in new.references], transaction)
        alike = log_state.latest.get(new.to_zone, 0)
        offset, total = log_state.head + 1, log_state.total + fact.size
        log_state.risen_at = max(log_state.risen_at, self._now)
        data, log_state.chain = encode_entry(
            log_state.number,
            offset,
            alike,
            total,
            log_state.risen_at,
            self._now,
            fact,
            log_state.chain,
        )
        log_state.head, log_state.total, log_state.last_at = offset, total, self._now
        log_state.head_seq = transaction.next_seq
        if new.to_zone != NOBODY:
            log_state.latest[new.to_zone] = offset
        known = Known(offset, new.digest, log_state.head_seq, new.envelope)
        transaction.add(
            log_state,
            StreamMessage(transaction.subjects.entry(log, new.to_zone), data),
            fact.key,
            known,
        )
        self.fresh[fact.key] = offset, new
        return offset


def refer(
    names: Sequence[tuple[str, str]], transaction: StreamTransaction, *, is_awaited: bool = True
) -> None:
    """Mark names as referenced; those that stand for nothing yet only if they are awaited."""
    for bucket, key in names:
        subject = transaction.subjects.object(bucket, key)
        found = transaction.get(ObjectRecord, subject)
        if found is None and is_awaited:
            found = ObjectRecord(bucket, key)
        if found is not None and not found.is_referenced:
            found.is_referenced = True
            transaction.put(subject, found)
