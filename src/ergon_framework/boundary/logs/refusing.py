"""What every store of facts refuses alike: the names of others, and ids with other content."""

from __future__ import annotations

from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.facts import ConsumerInfo, Quarantined
from ergon_framework.ports.factstore import NewFact


def refuse_held(info: ConsumerInfo, holder: str | None, now: float) -> None:
    """Only who holds a leased name may use it."""
    if info.holder == holder or not info.is_held(now):
        return
    raise ConsumerHeldError(
        f"the consumer {info.name!r} is in use by {info.holder!r}",
        remedy="use another name, or wait until the other one stops",
        details={"consumer_name": info.name, "holder": info.holder},
        retry_after=info.held_until - now,
    )


def refuse_late(info: ConsumerInfo, holder: str | None, now: float) -> None:
    """Also who held the name once, and lost it to another one or to a seek, may not use it.

    Who was merely slow may finish, as long as nobody has taken its place.
    """
    refuse_held(info, holder, now)
    if holder is not None and holder != info.holder:
        raise ConsumerHeldError(
            f"{holder!r} no longer holds the consumer {info.name!r}",
            remedy="fetch again",
            details={"consumer_name": info.name, "holder": info.holder},
            retry_after=0.0,
        )


def conflicting(peer: str, log: str, fact: NewFact, now: float) -> Quarantined:
    """The item for a fact whose id stands for other content here."""
    return Quarantined(
        id=0,
        consumer=f"pull:{peer}",
        log=log,
        offset=fact.source_offset or 0,
        reason="conflicting_duplicate",
        message=f"message id {fact.message_id!r} of {fact.from_zone!r} stands for other content",
        attempts=1,
        at=now,
        envelope=fact.envelope,
        fact=fact.fact,
    )
