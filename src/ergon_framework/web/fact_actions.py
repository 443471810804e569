"""The actions on facts that a zone has set aside. Each is recorded in the audit log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from ergon_framework.errors import (
    BoundaryError,
    ConfigurationError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
    ZoneMovedError,
    describe,
)
from ergon_framework.jobs.change_requests import checked_reason
from ergon_framework.web.audit import DISCARD_FACT, RELEASE_FACT, may_be_done
from ergon_framework.web.backend_pool import BackendPool, backend_title
from ergon_framework.web.backends import ZoneBackend, zone_name
from ergon_framework.web.responses import (
    BackendUnavailableError,
    InvalidParameterError,
    MovedAwayError,
    NodeAwayError,
    NotAllowedError,
    ResourceNotFoundError,
    StateConflictError,
    UncallableNodeError,
    UnknownOutcomeError,
)

logger = logging.getLogger("ergon.web")

MOST_ITEM = 2**63 - 1
"""The largest number that a fact which was set aside may have."""
MOST_REASON = 250
"""How many characters a reason may have. The journal of a zone keeps 500, with the name of whoever
acts before the reason.
"""


@dataclass(frozen=True, slots=True)
class FactAction:
    """One action on a fact that was set aside."""

    name: str
    """The name in the terminal and in the API."""
    audited_as: str
    method: str
    """The method of the zone's node."""
    title: str
    done: str
    consequence: str
    states: tuple[str, ...]
    """The states of facts to which it applies."""
    is_final: bool = False


FACT_ACTIONS = {
    each.name: each
    for each in (
        FactAction(
            "release",
            RELEASE_FACT,
            "ReleaseQuarantine",
            "Release",
            "The fact was released: its consumer gets it once more.",
            "The fact is delivered to its consumer once more, before what comes next. If that fails"
            " again, the fact is set aside again.",
            ("quarantined",),
        ),
        FactAction(
            "discard",
            DISCARD_FACT,
            "DiscardQuarantine",
            "Discard",
            "The fact was discarded: its consumer never gets it.",
            "The fact is given up for this consumer, for good. Other consumers still get it.",
            ("quarantined", "released"),
            is_final=True,
        ),
    )
}


def fact_actions_for(state: str) -> list[FactAction]:
    """The actions that a state allows."""
    return [each for each in FACT_ACTIONS.values() if state in each.states]


def fact_target(zone: str, item: int) -> str:
    """The target in the audit log of a fact that was set aside."""
    return f"{zone}/{item}"


def listed_fact(source: ZoneBackend, item: int) -> dict[str, Any]:
    """A fact that was set aside, as the zone lists it."""
    for each in source.quarantine("all", None)["items"]:
        if each["id"] == item:
            return dict(each)
    raise ResourceNotFoundError(
        f"nothing was set aside under the id {item}",
        remedy=f"look at the quarantine of the zone {source.name!r}",
    )


class FactActions:
    """Carries the actions out, in the threads of the zone."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool

    async def check(self, zone: str, item: int) -> None:
        """Raise an error for a fact that is not there."""
        source = self._pool.zone(zone)
        await self._pool.call(zone_name(zone), partial(listed_fact, source, item))

    async def settle(
        self, action: FactAction, zone: str, item: int, actor: str, reason: str = ""
    ) -> dict[str, Any]:
        """Do one action. Returns the fact as it is then. The journal of the zone records the actor,
        too.
        """
        why = checked_reason(reason)
        said = f"by {actor}: {why}" if why else f"by {actor}"
        change = partial(_settle, self._pool.zone(zone), action, item, said)
        target, part = fact_target(zone, item), zone_name(zone)
        try:
            return await self._pool.recorded(part, actor, action.audited_as, target, why, change)
        except BackendUnavailableError as error:
            cause = error.__cause__
            if not isinstance(cause, NodeUnavailableError):
                raise
            if may_be_done(cause):
                raise UnknownOutcomeError(backend_title(part), "the fact") from error
            raise NodeAwayError(part, zone) from error


def _settle(source: ZoneBackend, action: FactAction, item: int, reason: str) -> dict[str, Any]:
    try:
        return source.settle(action.method, item, reason)
    except NotPermittedError as error:
        raise NotAllowedError(
            "the node of this zone does not let this server change it",
            remedy=f"allow {action.method} to the certificate of the zone, in its policy",
        ) from error
    # The texts of these three go to the log only, because they may name files and hosts.
    except ConfigurationError as error:
        part = zone_name(source.name)
        logger.error("%s cannot be called: %s", part, describe(error))  # noqa: TRY400 - one line
        raise UncallableNodeError(part, source.name, error.code) from error
    except ZoneMovedError as error:
        part = zone_name(source.name)
        logger.warning("%s was moved: %s", part, describe(error))
        raise MovedAwayError(part, source.name) from error
    except FactInvalidError as error:
        logger.warning("%s refuses: %s", zone_name(source.name), describe(error))
        raise InvalidParameterError(
            str(error.details.get("field", "reason")),
            "is refused by the node of the zone",
            "the log of the server says why",
            where="body",
        ) from error
    except BoundaryError as error:
        if error.reason != "wrong_state":
            raise
        raise StateConflictError(
            error.message, remedy=error.remedy, details=error.details
        ) from error
