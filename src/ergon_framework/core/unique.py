"""Who holds a unique key, and what becomes of a job that meets a holder.

A job that waits or runs holds its key. Two options change that: a job of ``WAITING_ONLY`` releases
its key when it starts to run, and a job with a period holds its key for so many seconds from when
it was added, even if it has ended in one of its states by then. Stores find the job that took a key
last and call this module; the Lua scripts of Redis are compared with it by tests.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ergon_framework.core.job import JobStatus


class OnDuplicate(StrEnum):
    """What to do with a job whose unique key is held by another."""

    REJECT = "reject"
    EXISTING = "existing"  # answer with the job that is there
    REPLACE = "replace"  # cancel that one, if it waits
    EXTEND = "extend"  # if it waits, let it wait for the new due time, with the new arguments


WAITING = frozenset({JobStatus.PENDING, JobStatus.RETRYING})
WAITING_ONLY = ("pending",)
NOT_ENDED = ("pending", "active")
ENDED_STATES = ("completed", "failed", "cancelled")
STATES = (*NOT_ENDED, *ENDED_STATES)
"""The states that a rule may name; ``pending`` includes jobs that wait for another attempt."""


class UniqueRule(msgspec.Struct, frozen=True):
    """How long a job holds its unique key, where it is not simply until it ends.

    Either its only state is ``pending``, or it has a period and the states of its end that count.
    """

    states: tuple[str, ...] = WAITING_ONLY
    period: float | None = None

    @property
    def is_waiting_only(self) -> bool:
        """Whether a job holds its key no more once it runs."""
        return self.period is None

    @property
    def ended_states(self) -> tuple[str, ...]:
        """The ends after which it still holds its key."""
        return tuple(each for each in self.states if each in ENDED_STATES)

    def until(self, created_at: float) -> float | None:
        """The instant from which a job that has ended holds nothing; None: it never does."""
        return None if self.period is None else created_at + self.period


def is_held(
    status: JobStatus, ended_states: tuple[str, ...], until: float | None, now: float
) -> bool:
    """Whether the job that took a key last still holds it.

    ``until`` is None for a job that holds its key only while it waits.
    """
    if status.is_final:
        return until is not None and now < until and status.value in ended_states
    return until is not None or status in WAITING


def decide(wanted: OnDuplicate, holder: JobStatus) -> OnDuplicate:
    """What becomes of a job that meets the holder of its key.

    Nothing can be done to a holder that runs or has ended, so a request to replace or extend it is
    refused: otherwise what the new job asks for would get lost silently.
    """
    if wanted in (OnDuplicate.REPLACE, OnDuplicate.EXTEND) and holder not in WAITING:
        return OnDuplicate.REJECT
    return wanted


def extended(run_at: float, due: float) -> float:
    """When a waiting job is due after another call asked for ``due``: never sooner than before."""
    return max(run_at, due)
