"""Checks of cooldowns: all callers of a lane wait, and nobody waits for less than was asked."""

from __future__ import annotations

from ergon_framework.testing.suites.framework import Check, register
from ergon_framework.testing.suites.providerstore.subject import (
    LANE,
    NEIGHBOURS,
    SUCCESS,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check()
def cooldown_is_told_to_all(s: Subject) -> None:
    """A cooldown is answered with, and is part of the lane's standing and of the summary."""
    until = s.start + 12.25
    same(s.store.cool(LANE, until), until, "the answer")
    same(s.store.standing(LANE).cooldown_until, until, "the standing")
    same(s.lane().cooldown_until, until, "the summary")


@check()
def cooldown_is_never_shortened(s: Subject) -> None:
    """An earlier instant changes nothing, and the answer is the one that holds."""
    until = s.start + 90.5
    s.store.cool(LANE, until)
    for earlier in (s.start + 90.25, s.start + 1.0, s.start - 60.0):
        same(s.store.cool(LANE, earlier), until, "the answer to an earlier instant")
    same(s.store.standing(LANE).cooldown_until, until, "the standing")


@check()
def cooldown_is_prolonged(s: Subject) -> None:
    """A later instant takes the place of the one before."""
    for seconds in (10.0, 10.25, 600.0, 90_000.0):
        same(s.store.cool(LANE, s.start + seconds), s.start + seconds, "the answer")
    same(s.store.standing(LANE).cooldown_until, s.start + 90_000.0, "the standing")


@check()
def cooling_keeps_the_circuit(s: Subject) -> None:
    """A cooldown leaves the circuit and its version as they are."""
    version = s.must_swap(0, s.probing())
    s.store.cool(LANE, s.start + 5.0)
    found = s.store.standing(LANE)
    same((found.breaker, found.version), (s.probing(), version), "circuit and version")


@check()
def recording_keeps_the_cooldown(s: Subject) -> None:
    """A success that comes in late does not end a cooldown."""
    s.store.cool(LANE, s.start + 5.0)
    s.ran(SUCCESS)
    same(s.store.standing(LANE).cooldown_until, s.start + 5.0, "the standing")


@check()
def cooldowns_are_apart(s: Subject) -> None:
    """Tenants, providers and capabilities share no cooldown."""
    s.store.cool(LANE, s.start + 60.0)
    for key in NEIGHBOURS:
        same(s.store.standing(key).cooldown_until, 0.0, f"the cooldown of {key}")
        same(s.store.cool(key, s.start + 5.0), s.start + 5.0, f"the answer about {key}")
    same(s.store.standing(LANE).cooldown_until, s.start + 60.0, "the cooldown")
