"""Appending in process: facts are checked, grouped and stored, and each producer is answered.

Many threads that check facts at once only compete for the interpreter, so one of them checks for
all. Facts that arrive while a group is being committed are checked during that wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

import msgspec

from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.facts.validation import ValidatedFact, unreadable
from ergon_framework.boundary.factstore.append_queue import AppendQueue
from ergon_framework.boundary.model import Envelope, EnvelopeLike, Fact, FactLike, Receipt
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.telemetry import ZoneEvents, appended
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BufferFullError,
    ConflictingDuplicateError,
    NodeUnavailableError,
    StoreBrokenError,
    StoreError,
    StoreFullError,
    ZoneMovedError,
)
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    AppendOutcome,
    CapacityExceeded,
    Conflict,
    FactStore,
    MissingReference,
    NewFact,
)
from ergon_framework.telemetry.notices import has_listeners
from ergon_framework.telemetry.tracing import is_traced

TRACE_LABELS = ("traceparent", "tracestate")
FULL_RETRY_AFTER = 1.0
"""Seconds after which a producer may ask a full log again."""


def answer(
    fact: NewFact, outcome: AppendOutcome, *, strict_envelope: bool
) -> Receipt | BoundaryError:
    """The answer to one append."""
    if isinstance(outcome, Appended):
        if strict_envelope and differs(fact, outcome):
            return _other_envelope(fact, outcome.offset)
        return receipt(fact, outcome)
    match outcome:
        case Conflict():
            return _conflict(fact, outcome)
        case MissingReference():
            return _missing_artifact_error(outcome)
        case CapacityExceeded(size=size):
            return BufferFullError(
                f"the outbound log holds {size} bytes and takes no more for now",
                remedy="wait until the peers have confirmed and retention has made room, or raise"
                " capacity_bytes",
                retry_after=FULL_RETRY_AFTER,
            )


def receipt(fact: NewFact, outcome: Appended) -> Receipt:
    """The answer to an append of what is in the log."""
    return Receipt(
        offset=outcome.offset, duplicate=outcome.is_duplicate, digest=digest_text(fact.digest)
    )


def differs(fact: NewFact, outcome: AppendOutcome) -> bool:
    """Whether a duplicate came with other advisory fields than the fact that was first.

    A different trace is ignored: each publication of an event may belong to a trace of its own.
    """
    first = outcome.envelope if isinstance(outcome, Appended) else None
    if first is None or first == fact.envelope:
        return False
    return _untraced(first) != _untraced(fact.envelope)


def _untraced(envelope: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(envelope)
    labels = found.pop("labels", None) or {}
    return {**found, "labels": {key: labels[key] for key in labels if key not in TRACE_LABELS}}


def store_trouble(error: StoreError) -> BoundaryError:
    """The answer when the store itself has failed: it is unknown whether the fact was stored.

    A store that was frozen after a move is an exception: it refuses every write as a whole.
    """
    if isinstance(error, ZoneMovedError):
        return error
    if error.details.get("moved_to"):
        return ZoneMovedError(error.message, remedy=error.remedy, details=error.details)
    if isinstance(error, StoreFullError):
        return BufferFullError(error.message, remedy=error.remedy, retry_after=FULL_RETRY_AFTER)
    is_latched = isinstance(error, StoreBrokenError)
    return NodeUnavailableError(
        error.message,
        reason="read_only" if is_latched else "store_unavailable",
        remedy=error.remedy,
    )


def _conflict(fact: NewFact, outcome: Conflict) -> ConflictingDuplicateError:
    # Of a fact whose payload was dropped the ledger keeps only half of the digest.
    is_whole = len(outcome.digest) == len(fact.digest)
    original = digest_text(outcome.digest) if is_whole else f"sha256:{outcome.digest.hex()}…"
    return ConflictingDuplicateError(
        f"message_id {fact.message_id!r} of zone {fact.from_zone!r} stands for other content,"
        f" at offset {outcome.offset}",
        remedy="send a correction as a new fact with an id of its own",
        details={
            "field": "envelope.message_id",
            "offset": outcome.offset,
            "original_digest": original,
            "digest": digest_text(fact.digest),
        },
    )


def _other_envelope(fact: NewFact, offset: int) -> ConflictingDuplicateError:
    return ConflictingDuplicateError(
        f"message_id {fact.message_id!r} of zone {fact.from_zone!r} came before, at offset"
        f" {offset}, with another envelope, and strict_envelope is on",
        remedy="repeat a fact with the very same envelope",
        details={"field": "envelope", "offset": offset, "digest": digest_text(fact.digest)},
    )


def _missing_artifact_error(outcome: MissingReference) -> ArtifactError:
    wanted, found = outcome.reference, outcome.found
    name = f"{wanted.bucket}/{wanted.key}"
    details = {
        "bucket": wanted.bucket,
        "key": wanted.key,
        "digest": digest_text(wanted.digest),
        "size": wanted.size,
    }
    if found is None:
        return ArtifactError(
            f"the artifact {name} is not there",
            remedy="put it first, wait for the answer, then append the fact",
            details=details,
        )
    return ArtifactError(
        f"the artifact {name} is another one than the fact says",
        reason="artifact_mismatch",
        remedy="refer to it with the digest and size that the put answered",
        details={**details, "found_digest": digest_text(found.digest), "found_size": found.size},
    )


class Receipts:
    """The answers of one zone."""

    def __init__(self, zone: str, settings: ZoneSettings, events: ZoneEvents) -> None:
        self._zone = zone
        self._settings = settings
        self._events = events

    def many(
        self, validated: Sequence[ValidatedFact], outcomes: Sequence[AppendOutcome], seconds: float
    ) -> list[Receipt | BoundaryError]:
        """The answers to appends that took so many seconds together."""
        is_watched = is_traced() or has_listeners()
        return [
            self.one(valid, outcome, seconds)
            if is_watched
            or not isinstance(outcome, Appended)
            or outcome.is_duplicate
            or valid.warnings
            else receipt(valid.new_fact, outcome)  # no warnings, as nearly always
            for valid, outcome in zip(validated, outcomes, strict=True)
        ]

    def one(
        self, valid: ValidatedFact, outcome: AppendOutcome, seconds: float
    ) -> Receipt | BoundaryError:
        """The answer to an append that took so many seconds; counts and reports it."""
        new, events = valid.new_fact, self._events
        if isinstance(outcome, Appended):
            events.note_damage(OUTBOUND, new.message_id, outcome)
        result = answer(new, outcome, strict_envelope=self._settings.strict_envelope)
        appended(self._zone, new, seconds, result)
        if isinstance(result, BoundaryError):
            self.refused(result, new)
            return result
        if result.duplicate:
            events.count("duplicates")
            if differs(new, outcome):
                events.count("envelope_differences")
                events.tell("fact.differed", message_id=new.message_id, offset=result.offset)
        for warning in valid.warnings:
            events.count("warnings")
            events.tell("fact.doubted", message_id=new.message_id, why=warning)
        events.tell("fact.appended", message_id=new.message_id, offset=result.offset)
        return result

    def refused(self, error: BoundaryError, fact: NewFact | None = None) -> None:
        """Count and report a refusal."""
        self._events.count("append_failures", error.reason or error.code)
        if error.reason == "conflicting_duplicate":
            self._events.count("conflicts")
        message_id = None if fact is None else fact.message_id
        self._events.tell("fact.refused", message_id=message_id, code=error.code, why=error.reason)


AppendAnswer: TypeAlias = Receipt | BoundaryError

READ_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a caller's own subclass of ``str`` or ``Mapping`` may raise when it is read."""
MAX_CHECK_TIME = 0.003
"""Seconds of checking facts after which the callers of the group before are woken in any case."""


_PLAIN_TYPES = frozenset({Envelope, Fact, dict})


class PendingFact:
    """A fact of one producer, and the result of validating it."""

    __slots__ = ("envelope", "fact", "valid")

    def __init__(self, envelope: EnvelopeLike, fact: FactLike) -> None:
        self.envelope = envelope
        self.fact = fact
        self.valid: ValidatedFact | None = None


class AppendTarget(Protocol):
    """What appending asks of a zone."""

    @property
    def store(self) -> FactStore:
        """Where its facts are."""

    @property
    def answering(self) -> Receipts:
        """Counts answers, and reports them to listeners."""

    def validate(self, envelope: EnvelopeLike, fact: FactLike) -> ValidatedFact:
        """Check one fact, without a look into the store."""

    def prepared(self, valid: ValidatedFact) -> NewFact:
        """The fact as the store takes it."""

    def check_bytes(self, fact: NewFact) -> None:
        """Refuse a fact whose artifacts are not where they should be."""

    def append_all(self, validated: Sequence[ValidatedFact | BoundaryError]) -> list[AppendAnswer]:
        """Append facts in order in one commit, each with its own answer."""

    def failed(self, error: StoreError, *, is_append: bool = False) -> BoundaryError:
        """The answer to a producer when the store has failed."""


class AppendBatcher:
    """Appends for a zone. Any thread may call it."""

    def __init__(self, zone: AppendTarget, *, max_check_time: float = MAX_CHECK_TIME) -> None:
        self._zone = zone
        self._max_check_time = max_check_time
        watch_waits = getattr(zone.store, "watch_waits", None)  # one made elsewhere may not know it
        self.appends: AppendQueue[PendingFact, AppendAnswer] = AppendQueue(
            self._append,
            look=self._look,
            name="ergon-zone",
            lets_go=watch_waits is not None,
        )
        if watch_waits is not None:
            watch_waits(self.appends.meanwhile)

    def append(self, envelope: EnvelopeLike, fact: FactLike) -> AppendAnswer:
        """Append one fact, in one commit with facts that other callers append meanwhile."""
        return self.appends.call(PendingFact(envelope, fact))

    def close(self) -> None:
        """Accept no more facts. May be called twice."""
        self.appends.close()

    def _append(self, group: Sequence[PendingFact]) -> list[AppendAnswer]:
        until = time.perf_counter() + self._max_check_time
        validated = []
        for asked in group:
            found = asked.valid or self._checked(asked)
            if isinstance(found, ValidatedFact) and found.new_fact.references:
                found = self._with_bytes(found)
            validated.append(found)
            if time.perf_counter() > until:  # callers of the group before have waited long enough
                self.appends.let_go()
        return self._zone.append_all(validated)

    def _look(self, asked: PendingFact) -> None:
        """Check a fact of the next group while the store commits the last one.

        No code of the user is called in the middle of a commit: neither a mapping of the user's own
        class is read, nor a listener called about a refusal. That waits for the fact's own group.
        """
        if type(asked.envelope) in _PLAIN_TYPES and type(asked.fact) in _PLAIN_TYPES:
            with suppress(Exception):
                asked.valid = self._zone.validate(asked.envelope, asked.fact)

    def _checked(self, asked: PendingFact) -> ValidatedFact | BoundaryError:
        """Check a fact without the store: what may be stored, or why it is refused."""
        try:
            return self._zone.validate(asked.envelope, asked.fact)
        except StoreError as error:
            return self._zone.failed(error)
        except BoundaryError as error:
            return self._refused(error)
        except READ_ERRORS as error:  # only this fact is refused, not the others of its group
            return self._refused(unreadable(error))

    def _with_bytes(self, valid: ValidatedFact) -> ValidatedFact | BoundaryError:
        """The fact, if the artifacts that it refers to are in the object store."""
        zone = self._zone
        self.appends.let_go()  # the store will be asked
        try:
            zone.check_bytes(zone.prepared(valid))
        except StoreError as error:
            return zone.failed(error)
        except BoundaryError as error:
            return self._refused(error)
        return valid

    def _refused(self, error: BoundaryError) -> BoundaryError:
        self._zone.answering.refused(error)
        return error
