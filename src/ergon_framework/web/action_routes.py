"""``POST /api/v1/jobs/…``: what an operator may do to one job, or to all that match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.security import HTTPBearer
from pydantic import Field

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.editing import JobEdit
from ergon_framework.web.addresses import named
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.job_actions import ACTIONS, MOST_AT_ONCE, JobActions, search_of
from ergon_framework.web.job_routes import Id, JobNamed, JobsParams
from ergon_framework.web.middleware import EDIT, HAS_HEADER, ROLE, caller_of
from ergon_framework.web.responses import (
    CHANGES,
    MISSING,
    InvalidParameterError,
    NotAllowedError,
    QueryParams,
    json_response,
)
from ergon_framework.web.schemas import (
    EditedJob,
    JobChange,
    JobsChange,
    QueueChange,
    ScheduleChange,
    ScheduleDeleted,
    ScheduleFired,
)
from ergon_framework.web.tokens import CallerRole

Reason = Annotated[str, Field(max_length=1000, description="Why; kept in the audit log.")]


class ReasonBody(QueryParams):
    """The reason of a change, for the audit log."""

    reason: Reason = ""


class EditBody(QueryParams):
    """The arguments that a dead-lettered job is to have instead of its own."""

    args: list[Any] | None = Field(None, description="Null: those that it has.")
    kwargs: dict[str, Any] | None = Field(None, description="Null: those that it has.")
    reason: Reason = ""
    new_id: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The id of the new job. The same request again makes no second job.",
    )


class JobFilterBody(QueryParams):
    """Which jobs are meant. Every filter that is given must match, as in the list of jobs."""

    status: list[JobStatus] = Field([])
    queue: str | None = None
    handler: str | None = None
    tag: list[str] = Field([])
    metadata: list[str] = Field([])
    error: str | None = None
    since: str | None = None
    until: str | None = None


class BulkBody(QueryParams):
    """A change of many jobs: the filter, and what to do."""

    action: Literal["requeue", "cancel", "delete"]
    filter: JobFilterBody = Field(description="An empty one means all jobs: say `all` as well.")
    all: bool = Field(False, description="All jobs that the action is for are meant.")
    dry_run: bool = Field(False, description="Only count them.")
    limit: int = Field(MOST_AT_ONCE, ge=1, le=MOST_AT_ONCE, description="At most so many.")
    reason: Reason = ""


def operator_of(request: Request) -> str:
    """The name of the operator who asks. Raises NotAllowedError for everybody else.

    A cookie alone is not enough, because a page of another site may make the browser send it.
    """
    name, role = caller_of(request.scope), request.scope.get(ROLE, CallerRole.VIEWER)
    if not request.scope.get(HAS_HEADER):
        raise NotAllowedError(
            "changing something through the API takes a token",
            remedy="start the server with --token-file, list the name of the token as operator"
            " under [server], and send the header Authorization: Bearer <token>",
        )
    if not role.may_act:
        raise NotAllowedError(
            f"{name} may read and change nothing",
            remedy=f'write operators = ["{name}"] under [server] in the settings',
        )
    return name


Operator = Annotated[str, Depends(operator_of)]


def queue_named(queue: str, id: Id = None) -> str:
    """The name of a queue, from the path or from the query."""
    return named(queue, id)


def schedule_named(schedule: str, id: Id = None) -> str:
    """The name of a schedule, from the path or from the query."""
    return named(schedule, id)


QueueNamed = Annotated[str, Depends(queue_named)]
ScheduleNamed = Annotated[str, Depends(schedule_named)]
Reasons = Annotated[ReasonBody, Body(default_factory=ReasonBody)]


def action_routes(pool: BackendPool) -> APIRouter:
    """The routes that change jobs."""
    actions = JobActions(pool)
    router = APIRouter(
        prefix="/api/v1/jobs",
        tags=["actions"],
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        responses=CHANGES,
    )

    @router.post("/bulk", summary="Change all jobs that match", response_model=JobsChange)
    async def change_many(asked: BulkBody, actor: Operator) -> Response:
        """Requeue, cancel or delete all jobs that match. With `dry_run` they are only counted."""
        return json_response(await _bulk(actions, asked, actor))

    @router.post(
        f"/{{job_id:path}}/{EDIT}",
        summary="Send a dead-lettered job back with other arguments",
        response_model=EditedJob,
        responses=MISSING,
    )
    async def edit(job_id: JobNamed, asked: EditBody, actor: Operator) -> Response:
        """A new job is stored, and the old one cancelled, in one commit."""
        wanted = JobEdit(
            args=asked.args, kwargs=asked.kwargs, reason=asked.reason, new_id=asked.new_id
        )
        made = await actions.edit(job_id, wanted, actor)
        return json_response({"id": made.id, "edited_from": job_id, "is_new": made.is_new})

    for name in ACTIONS:
        _add_action(router, actions, name)
    return router


def queue_action_routes(pool: BackendPool) -> APIRouter:
    """The routes that change queues and schedules."""
    actions = JobActions(pool)
    router = APIRouter(
        prefix="/api/v1",
        tags=["actions"],
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        responses=CHANGES,
    )

    @router.post(
        "/queues/{queue:path}/pause",
        summary="Pause a queue",
        response_model=QueueChange,
        responses=MISSING,
    )
    async def pause(queue: QueueNamed, actor: Operator) -> Response:
        """Start no more jobs of the queue. Jobs that run go on. Works also before the first job."""
        await actions.pause(queue, actor, is_paused=True)
        return json_response({"queue": queue, "paused": True})

    @router.post(
        "/queues/{queue:path}/resume",
        summary="Resume a queue",
        response_model=QueueChange,
        responses=MISSING,
    )
    async def resume(queue: QueueNamed, actor: Operator) -> Response:
        """Start jobs of the queue again."""
        await actions.pause(queue, actor, is_paused=False)
        return json_response({"queue": queue, "paused": False})

    _add_schedules(router, actions)
    return router


def _add_schedules(router: APIRouter, actions: JobActions) -> None:
    @router.post(
        "/schedules/{schedule:path}/fire",
        summary="Fire a schedule now",
        response_model=ScheduleFired,
        responses=MISSING,
    )
    async def fire(schedule: ScheduleNamed, actor: Operator) -> Response:
        """Enqueue the job of the schedule now, besides its fires. The next fire stays
        where it was.
        """
        job_id = await actions.fire(schedule, actor)
        return json_response({"schedule": schedule, "id": job_id})

    @router.post(
        "/schedules/{schedule:path}/pause",
        summary="Pause a schedule",
        response_model=ScheduleChange,
        responses=MISSING,
    )
    async def pause_schedule(schedule: ScheduleNamed, actor: Operator) -> Response:
        """It fires no more until it is resumed, whatever workers start meanwhile."""
        await actions.pause_schedule(schedule, actor, is_paused=True)
        return json_response({"schedule": schedule, "paused": True})

    @router.post(
        "/schedules/{schedule:path}/resume",
        summary="Resume a schedule",
        response_model=ScheduleChange,
        responses=MISSING,
    )
    async def resume_schedule(schedule: ScheduleNamed, actor: Operator) -> Response:
        """It fires again; what it missed in its pause is not made up for."""
        await actions.pause_schedule(schedule, actor, is_paused=False)
        return json_response({"schedule": schedule, "paused": False})

    @router.post(
        "/schedules/{schedule:path}/delete",
        summary="Delete a schedule",
        response_model=ScheduleDeleted,
        responses=MISSING,
    )
    async def delete_schedule(schedule: ScheduleNamed, actor: Operator) -> Response:
        """Jobs that it has enqueued stay. One of the settings or of an App comes back with the next
        worker.
        """
        await actions.delete_schedule(schedule, actor)
        return json_response({"schedule": schedule, "deleted": True})


def _add_action(router: APIRouter, actions: JobActions, name: str) -> None:
    action = ACTIONS[name]

    async def change(job_id: JobNamed, asked: Reasons, actor: Operator) -> Response:
        status = await actions.change_one(action, job_id, actor, asked.reason)
        return json_response({"id": job_id, "action": name, "status": status})

    change.__doc__ = action.consequence
    router.post(
        f"/{{job_id:path}}/{name}",
        name=name,
        summary=f"{action.title}: {_states(action.statuses)}",
        response_model=JobChange,
        responses=MISSING,
    )(change)


def _states(statuses: Sequence[JobStatus]) -> str:
    return "a job that is " + " or ".join(each.value for each in statuses)


async def _bulk(actions: JobActions, asked: BulkBody, actor: str) -> dict[str, Any]:
    given = asked.filter.model_dump(mode="json", exclude_defaults=True)
    if bool(given) == asked.all:
        raise InvalidParameterError(
            "filter",
            "contradicts all" if given else "names no job",
            'give a filter such as {"queue": "mail"}, or an empty one and "all": true',
            where="body",
        )
    action = ACTIONS[asked.action]
    try:
        search = search_of(action, JobsParams.model_validate(given))
    except InvalidParameterError as error:
        raise error.within("body.filter") from None
    matched = await actions.count(search)
    changed = 0
    if matched and not asked.dry_run:
        chosen = "; ".join(f"{name}={value}" for name, value in given.items()) or "all"
        changed = await actions.change_many(
            action, search, actor, chosen=chosen, reason=asked.reason, limit=asked.limit
        )
    return {
        "action": action.name,
        "matched": matched,
        "changed": changed,
        "dry_run": asked.dry_run,
    }
