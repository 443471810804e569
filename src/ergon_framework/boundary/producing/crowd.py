"""The producers of one process: their facts are checked and appended together.

Many threads that check at once only get in each other's way, so one of them checks for all; and
those who come while the last group is being committed are checked meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from ergon_framework.boundary.answering import Answering
from ergon_framework.boundary.facts.admission import Admission, unreadable
from ergon_framework.boundary.logs.grouping import Grouping
from ergon_framework.boundary.model import Envelope, EnvelopeLike, Fact, FactLike, Receipt
from ergon_framework.errors import BoundaryError, StoreError
from ergon_framework.ports.factstore import FactStore, NewFact

Answer: TypeAlias = Receipt | BoundaryError

ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What somebody's own kinds of text and mappings raise when they are read."""
GOOD_TIME = 0.003
"""Seconds for checking facts, after which those who were served before are let go in any case."""


_PLAIN = frozenset({Envelope, Fact, dict})


class Asked:
    """One producer's fact, and what came of checking it."""

    __slots__ = ("admission", "envelope", "fact")

    def __init__(self, envelope: EnvelopeLike, fact: FactLike) -> None:
        self.envelope = envelope
        self.fact = fact
        self.admission: Admission | None = None


class AppendTarget(Protocol):
    """What appending asks of a zone."""

    @property
    def store(self) -> FactStore:
        """Where its facts are."""

    @property
    def answering(self) -> Answering:
        """Counts answers, and tells who listens."""

    def admit(self, envelope: EnvelopeLike, fact: FactLike) -> Admission:
        """Check one fact, without a look into the store."""

    def prepared(self, admission: Admission) -> NewFact:
        """The fact as the store takes it."""

    def check_bytes(self, fact: NewFact) -> None:
        """Refuse a fact whose artifacts are not where they should be."""

    def append_all(self, admissions: Sequence[Admission | BoundaryError]) -> list[Answer]:
        """Append in order in one commit; each has an answer of its own."""

    def failed(self, error: StoreError, *, is_append: bool = False) -> BoundaryError:
        """What a producer is told when the store has failed."""


class Crowd:
    """Appends for a zone. Any thread may call it."""

    def __init__(self, zone: AppendTarget) -> None:
        self._zone = zone
        watch_waits = getattr(zone.store, "watch_waits", None)  # one made elsewhere may not know it
        self.grouping: Grouping[Asked, Answer] = Grouping(
            self._append,
            look=self._look,
            name="ergon-zone",
            lets_go=watch_waits is not None,
        )
        if watch_waits is not None:
            watch_waits(self.grouping.meanwhile)

    def append(self, envelope: EnvelopeLike, fact: FactLike) -> Answer:
        """Append one fact, together with those of others when there are any."""
        return self.grouping.call(Asked(envelope, fact))

    def close(self) -> None:
        """Take nothing more. Closing twice is fine."""
        self.grouping.close()

    def _append(self, group: Sequence[Asked]) -> list[Answer]:
        until = time.perf_counter() + GOOD_TIME
        admissions = []
        for asked in group:
            found = asked.admission or self._checked(asked)
            if isinstance(found, Admission) and found.new_fact.references:
                found = self._with_bytes(found)
            admissions.append(found)
            if time.perf_counter() > until:  # those who were served have waited long enough
                self.grouping.let_go()
        return self._zone.append_all(admissions)

    def _look(self, asked: Asked) -> None:
        """Check what will be in the next group, while the store is at work on the last one.

        Nothing of somebody else's is called in the middle of that: neither what reads a mapping of
        their own kind, nor who listens to refusals. That is for the group it belongs to.
        """
        if type(asked.envelope) in _PLAIN and type(asked.fact) in _PLAIN:
            with suppress(Exception):
                asked.admission = self._zone.admit(asked.envelope, asked.fact)

    def _checked(self, asked: Asked) -> Admission | BoundaryError:
        """What can be said of a fact without a look into the store."""
        try:
            return self._zone.admit(asked.envelope, asked.fact)
        except StoreError as error:
            return self._zone.failed(error)
        except BoundaryError as error:
            return self._refused(error)
        except ODD as error:  # of its own making, and no reason to refuse those of others
            return self._refused(unreadable(error))

    def _with_bytes(self, admission: Admission) -> Admission | BoundaryError:
        """The same, if the artifacts are where they should be."""
        zone = self._zone
        self.grouping.let_go()  # the store will be asked
        try:
            zone.check_bytes(zone.prepared(admission))
        except StoreError as error:
            return zone.failed(error)
        except BoundaryError as error:
            return self._refused(error)
        return admission

    def _refused(self, error: BoundaryError) -> BoundaryError:
        self._zone.answering.refused(error)
        return error
