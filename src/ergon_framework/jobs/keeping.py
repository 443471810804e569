"""What the keeper of a worker's store needs of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ergon_framework.ports.jobstore import Ask


class Chores(Protocol):
    """What has to be done now and then by somebody who may talk to the store."""

    @property
    def is_under_way(self) -> bool:
        """Whether something was begun that the next turns go on with."""

    def run(self, now: float) -> float:
        """Do what is due; answers when to come again."""

    def bounce(self) -> None:
        """The store was away, or its clock was set: look at everything anew, but rescue nothing
        before all who live have had the time to renew their leases.
        """

    def hurry(self) -> None:
        """The store was away for a moment only: look at everything anew."""

    def stalled(self) -> None:
        """The store answered after so long that others may look dead: rescue nothing yet."""

    def stop(self) -> None:
        """Begin nothing more."""


class MakeAsk(Protocol):
    """How the worker asks for jobs."""

    def __call__(self, slots: Mapping[str, int], *, is_thorough: bool) -> Ask:
        """Thoroughly: look for what nobody can run, and for what is left, too."""
