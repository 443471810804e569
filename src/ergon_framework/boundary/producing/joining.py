"""Appending in the caller's own database transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ergon_framework.boundary.facts.answers import answer
from ergon_framework.boundary.model import Envelope, Fact, Receipt
from ergon_framework.errors import BoundaryError, ConfigurationError, StoreError
from ergon_framework.ports.factstore import OUTBOUND

if TYPE_CHECKING:
    from ergon_framework.boundary.zone import Zone


def append_in(
    zone: Zone,
    connection: Any,
    envelope: Envelope | Mapping[str, Any],
    fact: Fact | Mapping[str, Any],
) -> Receipt:
    """Check a fact as at every other edge, and append it in the transaction of ``connection``."""
    append = getattr(zone.store, "append_in", None)
    if append is None:
        raise ConfigurationError(
            f"the facts of zone {zone.name} are in a store that takes part in no transaction of"
            " others",
            remedy="keep them on PostgreSQL (store = 'postgresql://…'), or append to an outbox",
        )
    try:
        admission = zone.admit(envelope, fact)
        new = zone.prepared(admission)
        zone.check_bytes(new)
        [outcome] = append(connection, OUTBOUND, [new], capacity=zone.capacity)
    except StoreError as error:
        if type(error) is StoreError:  # a mistake of the caller's, which no waiting mends
            raise
        raise zone.failed(error) from error
    except BoundaryError as error:
        zone.answering.refused(error)
        raise
    told = answer(new, outcome, strict_envelope=zone.settings.strict_envelope)
    if isinstance(told, BoundaryError):
        zone.answering.refused(told, new)
        raise told
    return told  # nobody is told of it yet: the caller may still roll back
