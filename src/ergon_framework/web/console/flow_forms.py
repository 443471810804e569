"""The forms on a flow's page: retry, skip, cancel, delete, and signal."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ergon_framework.errors import JobError
from ergon_framework.web.addresses import address_of
from ergon_framework.web.audit import SIGNAL_FLOW
from ergon_framework.web.console.acting import FormTaker, SureQuestion
from ergon_framework.web.console.answers import ROOT, View
from ergon_framework.web.flow_actions import FLOW_ACTIONS, PURGED, FlowAction, FlowActions
from ergon_framework.web.responses import InvalidParameterError

SIGNAL = "signal"
DID = {each.audited_as: each.done for each in FLOW_ACTIONS.values()}
DID[SIGNAL_FLOW] = "The signal was sent: its step has its result."


class FlowForms:
    """Accepts these forms from people who have signed in."""

    def __init__(self, taker: FormTaker) -> None:
        self._taker = taker
        self._actions = FlowActions(taker.actions)

    async def change(self, request: Request) -> View | Response:
        """Do what a form asks for, or ask the person to confirm it."""
        form = await self._taker.form(request)
        actor, flow_id = self._taker.actor(request, form), form.get("id", "")
        reason = form.get("reason", "").strip()
        if form.get("action") == SIGNAL:
            name, value = form.get("signal", ""), _value(form.get("value", ""))
            state = await self._actions.signal(flow_id, name, value, actor.name, reason)
            return _shown(request, flow_id, SIGNAL_FLOW, state)
        action = _action_in(form)
        if action.asks_first and form.get("sure") != "yes":
            await self._actions.check(flow_id)
            leave = address_of("/flows", flow_id)
            question = SureQuestion("/flow", {"id": flow_id}, leave, reason_for="the audit log")
            return question.view(action, "this flow")
        state = await self._actions.change(action, flow_id, actor.name, reason)
        return _shown(request, flow_id, action.audited_as, state)


def _action_in(form: Given) -> FlowAction:
    found = FLOW_ACTIONS.get(form.get("action", ""))
    if found is None:
        known = ", ".join((*FLOW_ACTIONS, SIGNAL))
        raise InvalidParameterError(
            "action", "is none of ours", f"send one of {known}", where="form"
        )
    return found


def _shown(request: Request, flow_id: str, did: str, state: str) -> Response:
    """The page of the flow, or the list of flows if it is deleted. Either says what was done."""
    root = str(request.scope.get("root_path", "")) + ROOT
    rest = "" if state == PURGED else f"/{quote(flow_id)}"
    return RedirectResponse(f"{root}/flows{rest}?did={did}", 303)


def _value(text: str) -> Any:
    """The value of a signal: JSON if the text is JSON, plain text otherwise, as in a terminal."""
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except RecursionError:
        raise JobError("value is nested too deeply", remedy="keep the data elsewhere") from None
    except ValueError:
        return text
