"""Those who watch a store: whatever they do, nothing of it happens to an append."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from ergon_framework.ports.factstore import Appended, Outcome

logger = logging.getLogger("ergon_framework.boundary")


def tell_head(seen: Callable[[str, int], None], log: str, outcomes: Sequence[Outcome]) -> None:
    """Tell up to where a log has grown, if it has."""
    new = [each.offset for each in outcomes if isinstance(each, Appended) and not each.is_duplicate]
    if new:
        seen(log, new[-1])


class Watching:
    """Somebody who is told. What is raised there is logged, once: it would be raised each time."""

    def __init__(self, seen: Callable[..., object], what: str) -> None:
        self._seen = seen
        self._what = what
        self._was_logged = False

    def __call__(self, *told: Any) -> None:
        """Tell."""
        try:
            self._seen(*told)
        except Exception:
            if not self._was_logged:
                self._was_logged = True
                text = "%r, which watches the %s of a store, failed; this is logged once"
                logger.exception(text, self._seen, self._what)
