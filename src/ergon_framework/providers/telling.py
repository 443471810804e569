"""How provider calls tell what happens: notices to whoever listens, and a log line."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

from ergon_framework.ports.providerstore import AttemptRow, Outcome
from ergon_framework.telemetry.notices import has_listeners
from ergon_framework.telemetry.notices import tell as announce

logger = logging.getLogger("ergon_framework.providers")
_GOOD = frozenset({"circuit.half_opened", "circuit.closed", "records.replayed", "store.back"})
"""What nobody has to act upon."""
_OVER = frozenset({Outcome.FAILED.value, Outcome.DEAD_LETTER.value})


def tell(name: str, /, **fields: object) -> None:
    """Tell of a change of state; it happens seldom enough to be logged as well."""
    key = fields.pop("key", None)
    if isinstance(key, tuple):
        tenant_id, provider_name, capability = key
        fields.update(tenant_id=tenant_id, provider_name=provider_name, capability=capability)
    announce(name, **fields)
    level = logging.INFO if name in _GOOD else logging.WARNING
    with suppress(Exception):  # a filter of the host's that raises is no failure of a call
        if logger.isEnabledFor(level):
            words = " ".join(f"{field}={value}" for field, value in fields.items())
            logger.log(level, "%s %s", name, words, extra={"ergon": fields})


def tell_of_calls(rows: Iterable[AttemptRow]) -> None:
    """Tell of the calls among these rows that ended badly; the rows themselves are the record."""
    if not has_listeners():
        return
    for row in rows:
        if row.outcome in _OVER:
            name = "provider.failed" if row.attempt_number else "provider.refused"
            fields = {
                "call_id": row.correlation_id,
                "tenant_id": row.tenant_id,
                "provider_name": row.provider_name,
                "capability": row.capability,
                "operation": row.operation,
                "reason_code": row.reason_code,
                "attempt": row.attempt_number,
            }
            announce(name, **fields)
