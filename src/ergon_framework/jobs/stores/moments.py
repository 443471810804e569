"""The failpoints that every job store has: before and after the commit of each call."""

from __future__ import annotations

from ergon_framework.storage.failpoints import declare

_CALLS = ("add", "exchange", "renew", "fire", "sweep", "desk")
_PLACES = {call: f"jobs.{call}" for call in _CALLS} | {"move": "move.jobs"}
BEFORE = {call: f"{place}.before_commit" for call, place in _PLACES.items()}
AFTER = {call: f"{place}.after_commit" for call, place in _PLACES.items()}
declare(*BEFORE.values(), *AFTER.values())
