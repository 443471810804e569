"""Records that every fact store can supply through its port, and the errors of records that do not
fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, cast

from ergon_framework.boundary.factstore.parts import StoreParts
from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.ports.transfer import (
    PAGE_BYTES,
    C,
    ConsumerCursorRecord,
    FactRecord,
    GapRecord,
    LinkRecord,
    LogRecord,
    ObjectNameRecord,
    QuarantineRecord,
    TransferRecord,
    ZoneEpochRecord,
)

L = TypeVar("L", bound=TransferRecord)

FROZEN_TABLES = ("facts", "gaps", "consumers", "quarantine", "objects", "awaited", "links")
"""Tables that are frozen in a zone that was moved."""


def dump_books(store: StoreParts, kind: type[C], after: Any, limit: int) -> list[C]:
    """Gaps, consumers, names of objects, links or the zone, after a place, in order."""
    if kind is ObjectNameRecord:
        found = store.objects.objects(after=after or ("", ""), limit=limit)
        return cast("list[C]", [ObjectNameRecord(each) for each in found])
    ordered = sorted(_few(store, kind), key=lambda copy: copy.sort_key)
    later = (copy for copy in ordered if after is None or copy.sort_key > after)
    return cast("list[C]", list(islice(later, limit)))


def _few(store: StoreParts, kind: type[TransferRecord]) -> Iterable[TransferRecord]:
    """What a zone has so few of that all of them are read at once."""
    if kind is GapRecord:
        return [GapRecord(gap) for gap in store.log.gaps()]
    if kind is ConsumerCursorRecord:
        # Lag and age are worked out when a consumer is read. Copied, they would make equal records
        # differ.
        readers = store.consumers.consumers()
        return [ConsumerCursorRecord(replace(each, lag=0, waiting_since=None)) for each in readers]
    if kind is LinkRecord:
        return [LinkRecord(link) for link in store.links.links()]
    if kind is ZoneEpochRecord:
        return [ZoneEpochRecord(store.links.info())]
    raise TypeError(f"a fact store has no {kind.__name__}")


def bounded(records: Iterable[L], limit: int) -> Iterator[L]:
    """Some records, and fewer when they are large."""
    size = 0
    for count, copy in enumerate(records):
        size += _weight(copy)
        # At least one, however large it is: the next page begins behind the last of this one.
        if count >= limit or (count and size > PAGE_BYTES):
            return
        yield copy


def _weight(copy: TransferRecord) -> int:
    """The bytes of a payload."""
    if isinstance(copy, FactRecord):
        return len(copy.fact.envelope) + len(copy.fact.fact)
    return (
        len(copy.item.envelope) + len(copy.item.fact) if isinstance(copy, QuarantineRecord) else 0
    )


def refuse_other_log(copy: LogRecord, number: int, first: int) -> None:
    """A log that is there must be an earlier state of the copy."""
    if number != copy.number or first > copy.first:
        raise StoreError(
            f"the log {copy.log} is there already, and it is not an earlier copy of the same one",
            remedy="move into an empty store",
        )


def refuse_hole(copy: FactRecord, head: int) -> None:
    """Refuse a copied fact that does not follow the last one of its log."""
    if copy.fact.offset != head + 1:
        raise StoreError(
            f"the fact at {copy.fact.offset} of {copy.log} cannot follow the one at {head}",
            remedy="`ergon boundary verify` tells whether one is missing where it came from",
        )


def refuse_other_chain(copy: FactRecord, chain: bytes) -> None:
    """Refuse a log whose hash chain differs: then not all facts up to this one are the same."""
    if chain != copy.chain:
        raise StoreError(
            f"the fact at {copy.fact.offset} of {copy.log} does not fit the hash chain",
            remedy="verify the store it comes from; a store that holds other facts cannot take it",
        )


def corrupted(log: str, offset: int, place: str) -> DataLossError:
    """The error about a row that cannot be read, with its log and offset."""
    return DataLossError(
        f"the fact at {offset} of {log} in {place} is not what was stored there",
        reason="corrupted",
        remedy="see what `verify` says, and restore a backup",
        details={"log": log, "offset": offset},
    )
