"""How provider calls tell what happens: notices to whoever listens, and a log line."""

from __future__ import annotations

import logging
import time

from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.fan_out import FanOut, has_listeners

logger = logging.getLogger("ergon_framework.providers")
_SINK = FanOut(None, (), ())


def tell(name: str, /, **fields: object) -> None:
    """Tell of a change of state; it happens seldom enough to be logged as well."""
    key = fields.pop("key", None)
    if isinstance(key, tuple):
        tenant_id, provider_name, capability = key
        fields.update(tenant_id=tenant_id, provider_name=provider_name, capability=capability)
    if has_listeners():
        _SINK.emit(Notice(name, time.time(), fields))
    logger.warning("%s", name, extra={"ergon": fields})
