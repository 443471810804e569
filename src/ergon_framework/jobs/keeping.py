"""How the keeper of a worker's store is told what to claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ergon_framework.ports.jobstore import Ask


class MakeAsk(Protocol):
    """How the worker asks for jobs."""

    def __call__(self, slots: Mapping[str, int], *, is_thorough: bool) -> Ask:
        """Thoroughly: look for what nobody can run, and for what is left, too."""
