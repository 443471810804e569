"""Whether everything a zone acknowledged is still what it was: the hash chains and the objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ergon_framework.boundary.anchor import read_anchor
from ergon_framework.boundary.facts.schema import digest_text
from ergon_framework.boundary.factstore.references import references_of, stored_facts
from ergon_framework.boundary.store_urls import folders_of
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import BoundaryNotFoundError
from ergon_framework.ports.factstore import Corruption, LogInfo, Reference, StoredObject
from ergon_framework.ports.transfer import move_state_of

NAMES_PER_READ = 500
"""Names read at once."""


@dataclass(frozen=True, slots=True)
class VerificationFinding:
    """A difference from what was acknowledged: of a fact, an object, or the store as a whole."""

    kind: str
    where: str
    what: str
    about: dict[str, Any]

    def view(self) -> dict[str, Any]:
        """Plain values."""
        return {"kind": self.kind, "where": self.where, "what": self.what, **self.about}


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """How much has been looked at so far."""

    facts: int
    objects: int


def size_of(zone: LocalZone) -> int:
    """About how many facts and objects there are to look at."""
    facts = sum(log.head - log.first + 1 for log in zone.store.logs())
    return facts + sum(1 for _ in named_objects(zone))


def verified(zone: LocalZone) -> Iterator[VerificationFinding | VerificationProgress]:
    """Walk every log and read every object; what is wrong as it is found, and how far it is."""
    facts = objects = 0
    lost = _lost(zone)
    if lost:
        yield VerificationFinding(
            "store", zone.name, f"it has lost what it acknowledged: {lost}", {}
        )
    mark = move_state_of(zone.store)
    if mark.is_incomplete:
        what = f"{mark.what_is_incomplete} into it has not ended: {mark.resume_remedy}"
        yield VerificationFinding("store", zone.name, what, {})
    for log in zone.store.logs():
        for found in zone.store.verify(log.name):
            if isinstance(found, Corruption):
                yield _fact(found)
            else:
                yield VerificationProgress(facts + _walked(log, found), objects)
        yield from _absent(zone, log.name)
        facts += log.head - log.first + 1
    intact: set[bytes] = set()
    for stored in named_objects(zone):
        # Many names may stand for the same bytes, which are read once.
        if stored.digest not in intact:
            wrong = _wrong(zone, stored)
            if wrong is None:
                intact.add(stored.digest)
            else:
                yield _object(stored, wrong)
        objects += 1
        yield VerificationProgress(facts, objects)


def _lost(zone: LocalZone) -> str:
    """What is missing from the ends of the logs, which a hash chain cannot show."""
    anchors = [read_anchor(folder) for folder in folders_of(zone.settings)[:1]]
    heads = {log.name: log.head for log in zone.store.logs()}  # later: a node may be at work
    return "".join(each.lost(zone.store.info().epoch, heads) for each in anchors)


def _absent(zone: LocalZone, log: str) -> Iterator[VerificationFinding]:
    """What the facts of a log refer to and is not there, or is something else."""
    for facts in stored_facts(zone.store, log):
        for fact in facts:
            for wanted in references_of(fact):
                what = _missing(zone, wanted)
                if what is not None:
                    about = {"log": log, "offset": fact.offset}
                    about |= {"bucket": wanted.bucket, "key": wanted.key}
                    yield VerificationFinding("reference", f"{log} {fact.offset}", what, about)


def _missing(zone: LocalZone, wanted: Reference) -> str | None:
    name = f"{wanted.bucket}/{wanted.key}"
    try:
        found = zone.found(wanted.bucket, wanted.key, wanted.digest)
    except BoundaryNotFoundError:
        other = zone.store.object(wanted.bucket, wanted.key)
        return f"it refers to {name}, which " + (
            "is not there" if other is None else "stands for other bytes"
        )
    if found.size == wanted.size:
        return None
    return f"it refers to {name} with {wanted.size} bytes, and there are {found.size}"


def named_objects(zone: LocalZone) -> Iterator[StoredObject]:
    """Every object that has a name, in order of bucket and key."""
    after = ("", "")
    while page := zone.store.objects(after=after, limit=NAMES_PER_READ):
        yield from page
        after = (page[-1].bucket, page[-1].key)


def _walked(log: LogInfo, reached: int) -> int:
    return max(0, min(reached, log.head) - log.first + 1)


def _wrong(zone: LocalZone, stored: StoredObject) -> str | None:
    wrong = zone.objects.verify(stored.digest, stored.size)
    if wrong is None:
        return None
    # An orphan may have been collected since its name was read; then nothing is wrong.
    still = zone.store.object(stored.bucket, stored.key)
    is_there = still is not None and still.digest == stored.digest
    return wrong if is_there else None


def _fact(problem: Corruption) -> VerificationFinding:
    about = {"log": problem.log, "offset": problem.offset}
    return VerificationFinding("fact", f"{problem.log} {problem.offset}", problem.what, about)


def _object(stored: StoredObject, what: str) -> VerificationFinding:
    about = {
        "bucket": stored.bucket,
        "key": stored.key,
        "digest": digest_text(stored.digest),
        "is_referenced": stored.is_referenced,
    }
    return VerificationFinding("object", f"{stored.bucket}/{stored.key}", what, about)
