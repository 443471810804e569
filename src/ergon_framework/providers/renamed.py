"""Two words for time: the timeout budget of a whole call, and the timeout of one attempt.

Older words for the same are refused, with the right one in the error: a bound that is accepted and
ignored is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import ParamSpec

from ergon_framework.errors import ConfigurationError

P = ParamSpec("P")

BUDGET = "timeout_budget_seconds"
RENAMED = frozenset({"timeout_seconds", "budget_seconds"})


def refuse_renamed(names: Collection[str]) -> None:
    """Refuse a name that is none any more."""
    for name in RENAMED.intersection(names):
        raise ConfigurationError(
            f"there is no {name}",
            remedy=f"write {BUDGET} for the whole call, or attempt_timeout_seconds for one attempt",
        )


def refusing_renamed(init: Callable[P, None]) -> Callable[P, None]:
    """An ``__init__`` that refuses the old names; its signature is as it was."""

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if kwargs:
            refuse_renamed(kwargs)
        init(*args, **kwargs)

    return checked
