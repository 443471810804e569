"""How long a call may still wait for its store: the store asks, and the call need not tell it.

A store has patience of its own, for callers with all the time in the world. A call with a budget
has what is left of it, on whichever thread its work is done. That is no business of other stores,
which the provider's own code may use meanwhile.
"""

from __future__ import annotations

from ergon_framework.storage.deadlines import LEAST, TimeBudget

__all__ = ["LEAST", "at_most", "hurried", "unhurried"]

_CALLS = TimeBudget("ergon_hurry")
hurried = _CALLS.run_within
unhurried = _CALLS.run_unlimited
at_most = _CALLS.at_most
