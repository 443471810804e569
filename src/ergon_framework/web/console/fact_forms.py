"""The forms about a fact that was set aside: release it, or discard it."""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.console.acting import FormTaker, SureQuestion
from ergon_framework.web.console.answers import ROOT, View
from ergon_framework.web.console.zone_page import item_number
from ergon_framework.web.fact_actions import FACT_ACTIONS, MOST_REASON, FactAction, FactActions
from ergon_framework.web.responses import InvalidParameterError

DID = {each.audited_as: each.done for each in FACT_ACTIONS.values()}


class FactForms:
    """Accepts these forms from people who have signed in."""

    def __init__(self, taker: FormTaker, pool: BackendPool) -> None:
        self._taker = taker
        self._pool = pool
        self._actions = FactActions(pool)

    async def change(self, request: Request) -> View | Response:
        """Do what a form asks for, after the person has confirmed it."""
        form = await self._taker.form(request)
        actor, action = self._taker.actor(request, form), _action_in(form)
        zone = form.get("zone", "")
        item = item_number(zone, form.get("id", ""))
        if form.get("sure") != "yes":
            await self._actions.check(zone, item)
            question = SureQuestion(
                "/fact",
                {"zone": zone, "id": str(item)},
                f"/zones/{quote(zone)}/quarantine/{item}",
                reason_for="the journal of the zone",
                most_reason=MOST_REASON,
                is_final=action.is_final,
            )
            return question.view(action, "this fact")
        reason = form.get("reason", "").strip()
        if len(reason) > MOST_REASON:
            problem = f"is longer than {MOST_REASON} characters"
            raise InvalidParameterError("reason", problem, "shorten it", where="form")
        await self._actions.settle(action, zone, item, actor.name, reason)
        root = str(request.scope.get("root_path", "")) + ROOT
        place = f"{root}/zones/{quote(zone)}/quarantine/{item}"
        return RedirectResponse(f"{place}?did={action.audited_as}", 303)


def _action_in(form: Given) -> FactAction:
    found = FACT_ACTIONS.get(form.get("action", ""))
    if found is None:
        known = " or ".join(FACT_ACTIONS)
        raise InvalidParameterError("action", "is none of ours", f"send {known}", where="form")
    return found
