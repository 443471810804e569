"""What every route is given: the parts that can be asked, and what may be shown."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    JobNotFoundError,
    StoreError,
)
from ergon_framework.web.asking import Part
from ergon_framework.web.job_source import JobSource
from ergon_framework.web.refusals import NotHereError, PartAwayError
from ergon_framework.web.sources import PROVIDERS, Sources
from ergon_framework.web.zone_source import ZoneSource

T = TypeVar("T")

logger = logging.getLogger("ergon.web")

_SHARE = 0.8
"""Of a request's time that a part may take; the rest is for saying that it took too long."""
_KINDS = {"zone": "zone", PROVIDERS: "store of the provider"}
_NAMES = {"jobs": "the job store", PROVIDERS: "the store of provider calls"}


class House:
    """Asks parts by name. The text of what goes wrong stays in our log: it may name files."""

    def __init__(self, sources: Sources, seconds: float, *, shows_payloads: bool = False) -> None:
        self.sources = sources
        self.shows_payloads = shows_payloads
        self._away: set[str] = set()
        self.parts = {name: Part(name, seconds * _SHARE) for name, _ in sources.parts()}

    def jobs(self) -> JobSource:
        """The job store; an error when there is none."""
        if self.sources.jobs is None:
            raise _none("job store", "[store] or [jobs]")
        return self.sources.jobs

    def zone(self, name: str) -> ZoneSource:
        """A zone; an error when the settings do not have it."""
        if name not in self.sources.zones:
            raise NotHereError(
                "the settings of this server have no such zone",
                remedy="/api/v1/boundary lists those that there are",
            )
        return self.sources.zones[name]

    async def ask(self, part: str, question: Callable[[], T], seconds: float | None = None) -> T:
        """What a part answers; ``PartAwayError`` when it does not."""
        try:
            found = await self.parts[part].ask(question, seconds)
        except (JobNotFoundError, BoundaryNotFoundError):
            raise
        except (StoreError, BoundaryError, OSError) as error:
            if part not in self._away:  # whoever asks again and again need not be told each time
                logger.warning("%s does not answer: %s", part, error)
            self._away.add(part)
            code = error.code if isinstance(error, StoreError | BoundaryError) else "io"
            raise PartAwayError(part, told(part), code) from error
        if part in self._away:
            self._away.discard(part)
            logger.warning("%s answers again", part)
        return found


def told(part: str) -> str:
    """What a part is called in front of people."""
    if part in _NAMES:
        return _NAMES[part]
    kind, _, name = part.partition(":")
    return f"the {_KINDS[kind]} {name!r}"


def _none(what: str, where: str) -> NotHereError:
    return NotHereError(
        f"this server has no {what}", remedy=f"name one under {where} in its settings"
    )
