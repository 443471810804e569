"""The forms that change jobs: who may send them, what is asked once more, what is recorded."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request

from ergon_framework.core.job import JobStatus
from ergon_framework.core.text import counted
from ergon_framework.errors import JobError
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.jobstore import Search
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.console.job_pages import params_of
from ergon_framework.web.job_routes import search_for
from ergon_framework.web.responses import InvalidParameterError, NotAllowedError
from ergon_framework.web.sessions import COOKIE, BrowserSession, Sessions

audit = logging.getLogger("ergon.web.audit")
audit.setLevel(logging.INFO)  # whatever the level of all others: who did what is always told

MOST_AT_ONCE = 10_000
"""Jobs that one form changes: a request has its time. The same form goes on with the rest."""
_FORM_ONLY = frozenset({"secret", "action", "sure", "reason", "back", "limit", "cursor"})


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done to jobs."""

    name: str
    title: str
    done: str
    statuses: tuple[JobStatus, ...]
    """The states of the jobs that it is for."""
    consequence: str
    asks_first: bool = False
    """Whether one job is enough to be asked about: it cannot be undone."""


_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)
ACTIONS = {
    each.name: each
    for each in (
        Action(
            "requeue",
            "Requeue",
            "sent back",
            (JobStatus.FAILED,),
            "They begin anew, with fresh counters, in their own queues.",
        ),
        Action(
            "cancel",
            "Cancel",
            "cancelled",
            (*_WAITING, JobStatus.ACTIVE),
            "Those that wait are cancelled now. Workers are asked to end those that run; one that"
            " completes first has completed.",
            asks_first=True,
        ),
        Action(
            "delete",
            "Delete",
            "deleted",
            (JobStatus.FAILED, JobStatus.COMPLETED, JobStatus.CANCELLED),
            "They are gone for good, with their history and their results.",
            asks_first=True,
        ),
    )
}


def actions_for(status: str) -> list[Action]:
    """What can be done to a job in such a state."""
    return [each for each in ACTIONS.values() if status in {s.value for s in each.statuses}]


class FormTaker:
    """Takes the forms of people who have signed in."""

    def __init__(self, pool: BackendPool, sessions: Sessions | None) -> None:
        self._pool = pool
        self.sessions = sessions

    def session(self, request: Request) -> BrowserSession | None:
        """Who has signed in with the browser that asks."""
        return None if self.sessions is None else self.sessions.find(request.cookies.get(COOKIE))

    async def form(self, request: Request) -> Given:
        """The fields that were sent, which may only come from a page of this server."""
        refuse_foreign(request)
        text = (await request.body()).decode("utf-8", "replace")
        try:
            fields = parse_qs(text, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise InvalidParameterError("form", "has too many fields", "send fewer") from None
        return Given([(name, value) for name, values in fields.items() for value in values])

    def actor(self, request: Request, form: Given) -> BrowserSession:
        """Who acts; an error for who may not, and for a form that is none of this session."""
        session = self.session(request)
        if session is None:
            raise NotAllowedError(
                "you have not signed in, or too long ago",
                remedy="sign in with the link beside the theme, then do it again",
            )
        if not session.is_operator:
            raise NotAllowedError(
                f"{session.name} may read and change nothing",
                remedy=f'write operators = ["{session.name}"] under [server] in the settings',
            )
        given = form.get("secret", "")
        if not hmac.compare_digest(given.encode(), session.form_secret.encode()):
            raise NotAllowedError(
                "this form is not of your present session",
                remedy="load the page again, and send its form",
            )
        return session

    async def change_one(
        self, action: Action, job_id: str, actor: BrowserSession, reason: str
    ) -> None:
        """Do it to one job."""
        source = self._pool.jobs()
        await self._pool.call("jobs", partial(_change, source, action, job_id, actor.name, reason))
        audit.info("%s: %s the job %r", actor.name, action.name, job_id)

    async def count(self, action: Action, form: Given) -> tuple[int, Mapping[str, Any]]:
        """How many jobs it would be done to, and how they were chosen; nothing is changed."""
        source, search = self._pool.jobs(), search_in(action, form)

        def look() -> int:
            with source.opened() as client:
                return client.count(search)

        return await self._pool.call("jobs", look), _wanted(form)

    async def change_many(self, action: Action, form: Given, actor: BrowserSession) -> int:
        """Do it to all that match, up to a bound; how many."""
        source, search = self._pool.jobs(), search_in(action, form)
        reason = form.get("reason", "")
        change = partial(_change_many, source, action, search, actor.name, reason)
        done = await self._pool.call("jobs", change)
        audit.info("%s: %s %s", actor.name, action.name, counted(done, "job"))
        return done


def refuse_foreign(request: Request) -> None:
    """Refuse what a page of another site had a browser send."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    is_ours = origin is None or urlsplit(origin).netloc.lower() == host.lower()
    if site not in ("same-origin", "none") or not is_ours:
        raise NotAllowedError(
            "this form was sent by a page of another site",
            remedy="open the console itself; a proxy in front must pass on the header Host",
        )


def action_in(form: Given) -> Action:
    """What is to be done."""
    found = ACTIONS.get(form.get("action", ""))
    if found is None:
        raise InvalidParameterError(
            "action", "is none of ours", f"send one of {', '.join(ACTIONS)}"
        )
    return found


def search_in(action: Action, form: Given) -> Search:
    """The jobs that a filter chooses, of those that the action is for."""
    asked = params_of(_filter(form), 1)
    statuses = [each for each in asked.status or action.statuses if each in action.statuses]
    if not statuses:
        raise InvalidParameterError(
            "status",
            f"has no job to {action.name}",
            "choose " + " or ".join(each.value for each in action.statuses),
        )
    return search_for(asked.model_copy(update={"status": statuses}), None)


def _filter(form: Given) -> Given:
    return Given([(name, value) for name, value in form.multi_items() if name not in _FORM_ONLY])


def _wanted(form: Given) -> dict[str, list[str]]:
    chosen = _filter(form)
    return {name: [v for v in chosen.getlist(name) if v] for name in chosen if chosen[name]}


def _change(source: JobBackend, action: Action, job_id: str, by: str, reason: str) -> None:
    with source.writing() as client:
        if action.name == "requeue":
            client.requeue(job_id, by=by)
        elif action.name == "cancel":
            client.cancel(job_id, running=True, by=by, reason=_checked(reason))
        else:
            client.delete(job_id)


def _change_many(source: JobBackend, action: Action, search: Search, by: str, reason: str) -> int:
    with source.writing() as client:
        return _many(client, action, search, by, _checked(reason))


def _many(client: JobClient, action: Action, search: Search, by: str, reason: str) -> int:
    if action.name == "requeue":
        return client.requeue_many(search, limit=MOST_AT_ONCE, by=by)
    if action.name == "cancel":
        return client.cancel_many(search, running=True, by=by, reason=reason, limit=MOST_AT_ONCE)
    return client.delete_many(search, limit=MOST_AT_ONCE)


def _checked(reason: str) -> str:
    if len(reason) > 1000:
        raise JobError("the reason is too long", remedy="write at most 1,000 characters")
    return reason.strip()
