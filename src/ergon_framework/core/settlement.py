"""How a source is told what became of a delivery: a second small table, after the ending."""

from __future__ import annotations

from enum import StrEnum

from ergon_framework.core.lifecycle import Ending


class Verb(StrEnum):
    """The three things a source can be told."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"


VERBS: dict[Ending, Verb] = {
    Ending.SUCCEEDED: Verb.ACK,
    Ending.FAILED: Verb.NACK,
    Ending.TIMED_OUT: Verb.NACK,
    Ending.ABORTED: Verb.RELEASE,
}
