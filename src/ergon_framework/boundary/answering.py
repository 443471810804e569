"""What producers are told of their appends; it is counted, and told to whoever listens."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.boundary import tracing
from ergon_framework.boundary.facts.admission import Admission
from ergon_framework.boundary.facts.answers import answer, differs, receipt
from ergon_framework.boundary.model import Receipt
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.telling import Telling
from ergon_framework.errors import BoundaryError
from ergon_framework.ports.factstore import OUTBOUND, Appended, NewFact, Outcome
from ergon_framework.telemetry.notices import has_listeners
from ergon_framework.telemetry.tracing import is_traced


class Answering:
    """The answers of one zone."""

    def __init__(self, zone: str, settings: ZoneSettings, telling: Telling) -> None:
        self._zone = zone
        self._settings = settings
        self._telling = telling

    def many(
        self, admissions: Sequence[Admission], outcomes: Sequence[Outcome], seconds: float
    ) -> list[Receipt | BoundaryError]:
        """The answers to appends that took so many seconds together."""
        is_watched = is_traced() or has_listeners()
        return [
            self.one(admission, outcome, seconds)
            if is_watched
            or not isinstance(outcome, Appended)
            or outcome.is_duplicate
            or admission.warnings
            else receipt(admission.new_fact, outcome)  # there is nothing to tell, as nearly always
            for admission, outcome in zip(admissions, outcomes, strict=True)
        ]

    def one(
        self, admission: Admission, outcome: Outcome, seconds: float
    ) -> Receipt | BoundaryError:
        """The answer to an append that took so many seconds, counted and told."""
        new, telling = admission.new_fact, self._telling
        if isinstance(outcome, Appended):
            telling.damage_met(OUTBOUND, new.message_id, outcome)
        told = answer(new, outcome, strict_envelope=self._settings.strict_envelope)
        tracing.appended(self._zone, new, seconds, told)
        if isinstance(told, BoundaryError):
            self.refused(told, new)
            return told
        if told.duplicate:
            telling.count("duplicates")
            if differs(new, outcome):
                telling.count("envelope_differences")
                telling.tell("fact.differed", message_id=new.message_id, offset=told.offset)
        for warning in admission.warnings:
            telling.count("warnings")
            telling.tell("fact.doubted", message_id=new.message_id, why=warning)
        telling.tell("fact.appended", message_id=new.message_id, offset=told.offset)
        return told

    def refused(self, error: BoundaryError, fact: NewFact | None = None) -> None:
        """Count and tell a refusal."""
        self._telling.count("append_failures", error.reason or error.code)
        if error.reason == "conflicting_duplicate":
            self._telling.count("conflicts")
        message_id = None if fact is None else fact.message_id
        self._telling.tell("fact.refused", message_id=message_id, code=error.code, why=error.reason)
