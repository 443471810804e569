"""How provider calls tell what happens: notices to whoever listens, and a log line."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.fan_out import FanOut, has_listeners

logger = logging.getLogger("ergon_framework.providers")
_SINK = FanOut(None, (), ())
_GOOD = frozenset({"circuit.half_opened", "circuit.closed", "records.replayed", "store.back"})
"""What nobody has to act upon."""


def tell(name: str, /, **fields: object) -> None:
    """Tell of a change of state; it happens seldom enough to be logged as well."""
    key = fields.pop("key", None)
    if isinstance(key, tuple):
        tenant_id, provider_name, capability = key
        fields.update(tenant_id=tenant_id, provider_name=provider_name, capability=capability)
    if has_listeners():
        _SINK.emit(Notice(name, time.time(), fields))
    level = logging.INFO if name in _GOOD else logging.WARNING
    with suppress(Exception):  # a filter of the host's that raises is no failure of a call
        if logger.isEnabledFor(level):
            words = " ".join(f"{field}={value}" for field, value in fields.items())
            logger.log(level, "%s %s", name, words, extra={"ergon": fields})
