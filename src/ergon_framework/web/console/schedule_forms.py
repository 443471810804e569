"""The forms of the page of schedules: fire one now, pause it, resume it, delete it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ergon_framework.web.addresses import address_of
from ergon_framework.web.audit import DELETE_SCHEDULE, FIRE, PAUSE_SCHEDULE, RESUME_SCHEDULE
from ergon_framework.web.console.acting import FormTaker, SureQuestion
from ergon_framework.web.console.answers import ROOT, View
from ergon_framework.web.responses import InvalidParameterError

DID = {
    FIRE: "The schedule enqueued this job; its next fire stays where it was.",
    PAUSE_SCHEDULE: "The schedule was paused: it fires no more until it is resumed.",
    RESUME_SCHEDULE: "The schedule was resumed: what it missed in its pause is not made up for.",
    DELETE_SCHEDULE: "The schedule was deleted; the jobs that it has enqueued stay.",
}


@dataclass(frozen=True, slots=True)
class _Deletion:
    """What a person is asked about."""

    name: str = DELETE_SCHEDULE
    title: str = "Delete"
    consequence: str = (
        "The schedule fires no more, and the jobs that it has enqueued stay. One that stands in the"
        " settings or in an App comes back with the next worker: delete it there, or pause it."
    )


class ScheduleForms:
    """Takes them from people who have signed in."""

    def __init__(self, taker: FormTaker) -> None:
        self._taker = taker

    async def fire(self, request: Request) -> Response:
        """Enqueue the job of a schedule now, and show it."""
        form = await self._taker.form(request)
        actor = self._taker.actor(request, form)
        job_id = await self._taker.actions.fire(form.get("schedule", ""), actor.name)
        return RedirectResponse(address_of(f"{_root(request)}/jobs", job_id, did=FIRE), 303)

    async def change(self, request: Request) -> View | Response:
        """Pause or resume a schedule, which undo each other; or delete it, which asks first."""
        form = await self._taker.form(request)
        actor, action = self._taker.actor(request, form), _action_in(form)
        name = form.get("schedule", "")
        if action == DELETE_SCHEDULE and form.get("sure") != "yes":
            await self._taker.actions.check_schedule(name)
            question = SureQuestion("/schedule", {"schedule": name}, "/schedules")
            return question.view(_Deletion(), "this schedule")
        if action == DELETE_SCHEDULE:
            await self._taker.actions.delete_schedule(name, actor.name)
        else:
            is_paused = action == PAUSE_SCHEDULE
            await self._taker.actions.pause_schedule(name, actor.name, is_paused=is_paused)
        return RedirectResponse(f"{_root(request)}/schedules?did={action}", 303)


def _action_in(form: Given) -> str:
    known = (PAUSE_SCHEDULE, RESUME_SCHEDULE, DELETE_SCHEDULE)
    action = form.get("action", "")
    if action not in known:
        remedy = f"send one of {', '.join(known)}"
        raise InvalidParameterError("action", "is none of ours", remedy, where="form")
    return action


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")) + ROOT
