"""Whether a worker process that ended is started again. Nothing here reads a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ergon_framework.app.exit_codes import ExitCode
from ergon_framework.core.retry import Backoff


@dataclass(frozen=True, slots=True)
class RestartRule:
    """How often within ``window`` seconds one worker may die, and how long it stays away."""

    limit: int = 5
    window: float = 60.0
    backoff: Backoff = Backoff(0.5, 2.0, 30.0)


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class Settled:
    """It came to its end; its code counts."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It died too often, or it will never work: end them all."""

    code: ExitCode


Decision: TypeAlias = Restart | Settled | GiveUp


def after_end(
    rule: RestartRule,
    code: int,
    *,
    is_complete: bool,
    deaths: Sequence[float],
    now: float,
    is_endless: bool = False,
) -> Decision:
    """What follows the end of a worker that nobody asked to stop.

    ``deaths`` are the instants of its unexpected ends, this one not included. A worker that ran to
    its end is not started again although something in its work went wrong: it would only do the
    same work twice. One that is endless has no end of its own.
    """
    if code == ExitCode.REFUSED:
        return GiveUp(ExitCode.REFUSED)
    if not is_endless and (code == ExitCode.DONE or is_complete):
        return Settled()
    recent = sum(1 for at in deaths if now - at < rule.window)
    if recent >= rule.limit:
        return GiveUp(ExitCode.FAILED)
    return Restart(rule.backoff.delay(recent))
