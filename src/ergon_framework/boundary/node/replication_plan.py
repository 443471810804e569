"""What a zone makes of a page that a peer sent: the decisions of a pull, without any I/O.

Here a fact goes to quarantine for what it is: malformed, not valid, or not for this zone. Two
more reasons show only with I/O, and are decided there: artifacts that cannot be had in
``replication.Artifacts``, and an id that stands for other content in ``factstore/append_plan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from ergon_framework.boundary.client.transport import encode
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.facts.validation import refuse_larger, validate_fact
from ergon_framework.boundary.model import Batch, Delivery, Envelope, Fact, Loss
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.core.zone_link import Frontier, contiguous
from ergon_framework.errors import BoundaryError, FactInvalidError, ObjectConflictError
from ergon_framework.ports.factstore import (
    INBOUND,
    OUTBOUND,
    Gap,
    Link,
    NewFact,
    Quarantined,
)

PULL = "pull:"
"""What precedes the peer's name in the consumer of facts set aside on their way in."""


PASSING = frozenset(
    {"unavailable", "deadline_exceeded", "resource_exhausted", "aborted", "unauthenticated"}
)
"""Codes of errors about the connection, the peer's load or trust, not about the request."""
MALFORMED = "malformed"
MAX_OFFSET = (1 << 63) - 1
"""The largest offset that every store can hold."""


class Malformed(Delivery, frozen=True, kw_only=True):
    """A fact of a page that is none: its offset can be read, so that the link can pass it."""

    content: bytes = b""
    problem: str = ""


def read_page(body: bytes) -> Batch:
    """A page as a peer sent it; what is no fact in it is ``Malformed``, and the rest is read."""
    try:
        return _read(body)
    except msgspec.ValidationError:
        # Decoded a second time, fact by fact, only after the fast way has failed: one bad fact of a
        # peer must not stop the link.
        page = _read_roughly(body)  # raises, too, when more than a fact of it is wrong
    facts = tuple(_fact(each) for each in page.facts)
    return Batch(**{name: getattr(page, name) for name in _OTHERS}, facts=facts)


def check_page(peer: str, batch: Batch) -> None:
    """Refuse a page whose numbers are none of a log: nothing of it is taken, and nothing moves."""
    problem = _problem(batch)
    if problem:
        raise _unusable(f"a page of {peer} cannot be used: {problem}")


def _problem(batch: Batch) -> str:
    """What is wrong with the numbers of a page, or nothing."""
    for name in ("cursor", "head_offset", "through_offset"):
        if not 0 <= getattr(batch, name) <= MAX_OFFSET:
            return f"its {name} is {getattr(batch, name)}"
    before = 0
    for fact in batch.facts:
        if not 1 <= fact.offset <= MAX_OFFSET:
            return f"one of its facts has the offset {fact.offset}"
        # Strictly growing: two facts of one offset would make the frontier depend on their order.
        if fact.offset <= before:
            return f"the fact at {fact.offset} comes after the one at {before}"
        before = fact.offset
    if batch.through_offset < before:
        return f"it ends at {batch.through_offset}, and has a fact at {before}"
    for gap in batch.gaps:
        if not 1 <= gap.first_offset <= gap.last_offset <= MAX_OFFSET:
            return f"it tells a loss of {gap.first_offset} to {gap.last_offset}"
    return ""


def _unusable(text: str) -> BoundaryError:
    return BoundaryError(
        text,
        code="data_loss",
        reason="bad_answer",
        remedy="see what answers under the peer's URL, and verify the peer's store",
    )


def is_about_the_fact(error: BaseException) -> bool:
    """Whether an error is about one fact and its artifacts: a retry need not help."""
    if isinstance(error, msgspec.MsgspecError):
        return True
    if not isinstance(error, BoundaryError) or error.is_retryable:
        return False
    return error.code not in PASSING and error.reason != "unknown_identity"


def is_permanent(error: BaseException) -> bool:
    """Whether such an error was decided here: it is the same however often it is tried."""
    return isinstance(error, ObjectConflictError) or (
        isinstance(error, FactInvalidError) and error.reason == "object_too_large"
    )


def reason_of(error: BaseException) -> str:
    """The word under which a fact is set aside whose artifacts cannot be had."""
    code, reason = getattr(error, "code", ""), getattr(error, "reason", "")
    if code == "permission_denied":
        return "artifact_denied"
    if code in ("not_found", "data_loss", "invalid_argument") and reason not in _REPORTED_REASONS:
        return "artifact_missing"
    return reason or code


def is_other_store(link: Link, batch: Batch) -> bool:
    """Whether the peer's store is another one than before, or an older state of it."""
    if link.epoch is None:
        return False
    # A head behind our frontier means that the peer was restored from a backup, even if it kept its
    # epoch.
    if batch.epoch != link.epoch or batch.head_offset < link.offset:
        return True
    known = link.chain.hex()
    # The hash chain is compared only at the same offset; it is the one proof that both logs have
    # the same past.
    return bool(batch.cursor == link.offset and known and batch.chain and batch.chain != known)


def explained(link: Link, batch: Batch) -> int:
    """The highest offset that the peer's cursor may have: our frontier and the losses right behind
    it.
    """
    return _across(link, batch).offset


@dataclass(slots=True)
class Plan:
    """What is taken over from a page, in order."""

    facts: list[NewFact] = field(default_factory=list)
    refused: list[Quarantined] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    """What the peer lost, in offsets of its log."""
    frontier: Frontier = field(default_factory=Frontier)
    is_cut: bool = False
    """Whether the page has a hole. The rest is fetched again."""


def plan(
    link: Link,
    batch: Batch,
    limits: LimitSettings,
    now: float,
    may_assert: Callable[[str], bool],
    largest: int | None = None,
) -> Plan:
    """Take what joins on to the frontier; set aside what no log of ours may hold.

    Raises when nothing joins on: to ask for the same page again would not change that.
    """
    # A page may be sent again after a lost confirmation: what is here already is skipped.
    new = [fact for fact in batch.facts if fact.offset > link.offset]
    start = _across(link, batch)
    steps = ((each.previous_offset or 0, each.offset) for each in new)
    frontier, taken = contiguous(start, steps)
    made = Plan(frontier=frontier, is_cut=taken < len(new))
    # Nothing at all joins on. The same page would come again for ever, so an operator has to hear
    # of it.
    if made.is_cut and frontier.offset == link.offset:
        raise _unusable(
            f"a page of {link.peer} cannot be used: its fact at {new[0].offset} follows"
            f" {new[0].previous_offset}, and what is here ends at {link.offset}"
        )
    for delivery in new[:taken]:
        _sort(made, link.peer, delivery, limits, now, may_assert, largest)
    if not made.is_cut:
        # Facts to other zones are left out of the page; up to its end there is nothing more for us.
        made.frontier = frontier.passed(batch.through_offset)
    made.gaps = _lost(batch, link.offset, made.frontier.offset, now)
    return made


def cut_before(made: Plan, link: Link, offset: int) -> Plan:
    """The part of a plan below an offset: what lies there cannot be taken yet."""
    facts = [fact for fact in made.facts if (fact.source_offset or 0) < offset]
    refused = [item for item in made.refused if item.offset < offset]
    gaps = [gap for gap in made.gaps if gap.last < offset]
    taken = [*(fact.source_offset or 0 for fact in facts), *(item.offset for item in refused)]
    reached = max([link.offset, *taken, *(gap.last for gap in gaps)])
    return Plan(facts, refused, gaps, Frontier(reached), is_cut=True)


def moved(link: Link, made: Plan, batch: Batch) -> Link:
    """The link after a plan was carried out."""
    is_at_end = not made.is_cut and made.frontier.offset == batch.through_offset
    return replace(
        link,
        epoch=batch.epoch,
        offset=made.frontier.offset,
        # The page has the hash chain at its end only. Where we stopped earlier it is not known, and
        # is compared again after the next page.
        chain=bytes.fromhex(batch.through_chain) if is_at_end else b"",
    )


def set_aside(
    peer: str,
    delivery: Delivery,
    reason: str,
    message: str,
    now: float,
    content: tuple[bytes, bytes],
) -> Quarantined:
    """A fact that cannot enter the inbound log, kept whole."""
    envelope, fact = content
    return Quarantined(
        0,
        f"{PULL}{peer}",
        f"{INBOUND}{peer}",
        delivery.offset,
        reason,
        message,
        1,
        now,
        envelope=envelope,
        fact=fact,
    )


def dropped(link: Link, details: Mapping[str, object], now: float) -> tuple[Link, list[Gap]]:
    """Where a link goes on behind facts that the peer no longer has, and the loss of them."""
    last = details.get("last_lost")
    # The number comes from the peer's error: a link must never go back by it, nor beyond any
    # offset.
    if not isinstance(last, int) or not link.offset < last <= MAX_OFFSET:
        return link, []
    gap = Gap(OUTBOUND, link.offset + 1, last, "dropped before we came", now)
    return replace(link, offset=last, chain=b""), [gap]


def is_behind_loss(link: Link, details: Mapping[str, object]) -> bool:
    """Whether the link is past all that its peer says to have dropped."""
    last = details.get("last_lost")
    return isinstance(last, int) and last <= link.offset


def _sort(
    made: Plan,
    peer: str,
    delivery: Delivery,
    limits: LimitSettings,
    now: float,
    may_assert: Callable[[str], bool],
    largest: int | None,
) -> None:
    if isinstance(delivery, Malformed):
        kept = (encode(delivery.envelope), delivery.content)
        made.refused.append(set_aside(peer, delivery, MALFORMED, delivery.problem, now, kept))
        return
    content = (encode(delivery.envelope), encode(delivery.fact))
    try:
        # Not thorough: the peer has validated it before, and its digest is compared below.
        new = validate_fact(delivery.envelope, delivery.fact, limits, is_thorough=False).new_fact
        _check(new, delivery, peer, may_assert)
        if largest is not None:
            refuse_larger(new, largest)
    except BoundaryError as error:
        reason = error.reason or error.code
        made.refused.append(set_aside(peer, delivery, reason, error.message, now, content))
        return
    new.source_offset = delivery.offset
    made.facts.append(new)


def _check(new: NewFact, delivery: Delivery, peer: str, may_assert: Callable[[str], bool]) -> None:
    if delivery.digest and digest_text(new.digest) != delivery.digest:
        raise FactInvalidError(
            "its content does not have the digest that the peer gave", reason="digest_mismatch"
        )
    if not may_assert(new.from_zone):
        raise FactInvalidError(
            f"{peer} may not speak for zone {new.from_zone!r}", reason="zone_not_allowed"
        )


class _Place(msgspec.Struct, kw_only=True):
    """Where something lies that is no fact."""

    offset: int
    previous_offset: int | None = None


class _UndecodedPage(Batch, frozen=True, kw_only=True, omit_defaults=True):
    """A page whose facts are not decoded yet."""

    facts: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]


_read = msgspec.json.Decoder(Batch).decode
_read_fact = msgspec.json.Decoder(Delivery).decode
_read_roughly = msgspec.json.Decoder(_UndecodedPage).decode
_read_place = msgspec.json.Decoder(_Place).decode
_OTHERS = tuple(name for name in Batch.__struct_fields__ if name != "facts")
_REPORTED_REASONS = ("artifact_mismatch", "digest_mismatch", "object_too_large")
_NO_ENVELOPE = Envelope(message_id="", from_zone="", to_zone="", produced_at_unix_ms=0)


def _fact(raw: msgspec.Raw) -> Delivery:
    try:
        return _read_fact(raw)
    except msgspec.ValidationError as error:
        place = _read_place(raw)
        return Malformed(
            offset=place.offset,
            previous_offset=place.previous_offset,
            envelope=_NO_ENVELOPE,
            fact=Fact(subject="", predicate=""),
            content=bytes(raw),
            problem=f"it is no fact: {error}",
        )


def _across(link: Link, batch: Batch) -> Frontier:
    """The frontier behind recorded losses, which come before the facts of a page."""
    first = min((fact.offset for fact in batch.facts), default=batch.through_offset + 1)
    frontier = Frontier(link.offset)
    for gap in batch.gaps:
        if gap.last_offset < first:
            frontier = frontier.passed(gap.last_offset)
    return frontier


def _lost(batch: Batch, after: int, through: int, now: float) -> list[Gap]:
    """The peer's losses within a stretch of its log, no offset twice."""
    gaps: list[Gap] = []
    for loss in sorted(batch.gaps, key=lambda each: each.first_offset):
        # Cut to the stretch that this page covers: losses that lie further on come again with the
        # next page.
        first, last = max(loss.first_offset, after + 1), min(loss.last_offset, through)
        if first <= last:
            gaps.append(Gap(OUTBOUND, first, last, loss.reason, _instant(loss, now)))
            after = last
    return gaps


def _instant(loss: Loss, now: float) -> float:
    at = loss.recorded_at_unix_ms
    return now if at is None else at / 1000
