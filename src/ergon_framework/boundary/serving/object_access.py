"""Which artifacts a caller may get.

Those of the buckets that the policy opens to it, and those that facts refer to which it may read: a
peer names the fact it asks for, so nothing about readers has to be written down when a fact is
appended, and a fact that was dropped opens nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ergon_framework.boundary.facts.admission import MARK, references
from ergon_framework.boundary.serving.policy import Permit
from ergon_framework.boundary.zone import PEER, Zone
from ergon_framework.errors import BoundaryError, NotPermittedError
from ergon_framework.ports.factstore import OUTBOUND, StoredFact


def allowed_digest(
    zone: Zone,
    permit: Permit,
    name: tuple[str, str],
    wanted: bytes | None,
    fact_offset: int | None,
) -> bytes | None:
    """The digest of the bytes that the caller may get under this name.

    None when the caller did not say which, and may get any: it may use the whole bucket. Reads the
    log otherwise; ``NotPermittedError`` in the same words whether the object exists or not.
    """
    bucket, key = name
    if permit.may_use_bucket(bucket):
        return wanted
    for fact in _facts(zone, permit, fact_offset):
        for digest in _referred(fact, name):
            if wanted in (None, digest):
                return digest
    zone.telling.count("denied", "object")
    who = permit.identity or "an anonymous caller"
    raise NotPermittedError(
        f"{who} may not get {bucket}/{key}: it may not use the bucket, and names no fact that it"
        " may read and that refers to these bytes",
        reason="not_allowed",
        remedy="give the offset of such a fact as fact_offset, or an operator of this zone allows"
        f" buckets = [{bucket!r}] in the policy file",
        details={"bucket": bucket},
    )


def _facts(zone: Zone, permit: Permit, offset: int | None) -> Iterator[StoredFact]:
    """The facts that may open an object to the caller: the one it names, or those it was served."""
    if not permit.may_read(OUTBOUND):
        return
    if offset is None:
        yield from _served(zone, permit)
        return
    page = zone.store.page(OUTBOUND, max(0, offset - 1), 1, 1)
    for fact in page.facts:
        if fact.offset == offset and permit.may_consume(f"{PEER}{fact.to_zone}"):
            yield fact


def _served(zone: Zone, permit: Permit) -> Iterator[StoredFact]:
    """What a peer has been given and has not confirmed: peers of an older version name no fact."""
    name = f"{PEER}{permit.identity}"
    if not permit.identity or not permit.may_consume(name):
        return
    with suppress(BoundaryError):  # there is no such consumer
        reader = zone.store.consumer(name)
        if reader.log != OUTBOUND or reader.served <= reader.cursor:
            return
        limits = zone.settings.limits
        page = zone.store.page(
            OUTBOUND, reader.cursor, limits.page_items, limits.page_bytes, reader.to_zone
        )
        for fact in page.facts:
            if fact.offset <= reader.served:
                yield fact


def _referred(fact: StoredFact, name: tuple[str, str]) -> Iterator[bytes]:
    """The digests that a fact gives for the object of this name."""
    if MARK not in fact.fact:
        return
    with suppress(BoundaryError, msgspec.DecodeError):
        content = msgspec.json.decode(fact.fact)
        for each in references(content.get("object_json")):
            if (each.bucket, each.key) == name:
                yield each.digest
