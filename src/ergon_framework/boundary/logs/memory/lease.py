"""Who may act under a consumer's name."""

from __future__ import annotations

from ergon_framework.errors import ConsumerHeldError
from ergon_framework.ports.factstore import ConsumerInfo


def refuse_others(one: ConsumerInfo, holder: str | None, now: float) -> None:
    """Refuse whoever wants to begin while another one holds the name."""
    if one.holder != holder and one.is_held(now):
        raise ConsumerHeldError(
            f"consumer {one.name!r} is held by {one.holder!r}",
            remedy="wait until it lets go, or let each process have a name of its own",
            details={"consumer_name": one.name, "holder": one.holder},
            retry_after=one.held_until - now,
        )


def refuse_late(one: ConsumerInfo, holder: str | None, now: float) -> None:
    """Refuse also whoever held the name once, and lost it to another one or to a seek.

    Who was merely slow may finish, as long as nobody has taken its place.
    """
    refuse_others(one, holder, now)
    if holder not in {None, one.holder}:
        raise ConsumerHeldError(
            f"{holder!r} no longer holds consumer {one.name!r}",
            remedy="fetch again",
            details={"consumer_name": one.name, "holder": one.holder},
            retry_after=0.0,
        )
