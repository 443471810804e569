"""How a source is told what became of a delivery: a second small table, after the ending."""

from __future__ import annotations

from enum import StrEnum

from ergon_framework.core.lifecycle import Ending


class Verb(StrEnum):
    """The things a source can be told."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    RELEASE_AFTER = "release_after"


VERBS: dict[Ending, Verb] = {
    Ending.SUCCEEDED: Verb.ACK,
    Ending.FAILED: Verb.NACK,
    Ending.TIMED_OUT: Verb.NACK,
    Ending.ABORTED: Verb.RELEASE,
    Ending.PARKED: Verb.RELEASE_AFTER,
}
