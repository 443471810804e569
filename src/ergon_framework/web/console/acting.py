"""The forms that change jobs: who may send them, and what they contain."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.datastructures import QueryParams as Given
from starlette.requests import Request

from ergon_framework.errors import JobError
from ergon_framework.jobs.editing import JobEdit
from ergon_framework.ports.jobstore import Search
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.console.answers import View
from ergon_framework.web.console.job_pages import params_of
from ergon_framework.web.job_actions import ACTIONS, MOST_AT_ONCE, Action, JobActions, search_of
from ergon_framework.web.job_routes import Place
from ergon_framework.web.middleware import CALLER, PROXIED, ROLE
from ergon_framework.web.responses import (
    InvalidParameterError,
    NotAllowedError,
    cursor_place,
    cursor_text,
)
from ergon_framework.web.sessions import COOKIE, BrowserSession, Sessions

_FORM_ONLY = frozenset(
    {"secret", "action", "sure", "reason", "back", "limit", "cursor", "behind", "told"}
)
_MOST_DIGITS = 20


@dataclass(frozen=True, slots=True)
class BulkQuestion:
    """What a person has to confirm before many jobs are changed."""

    number: int
    wanted: Mapping[str, Any]
    """The filter by which they were chosen."""
    behind: str | None
    """The place after all of them: jobs that were enqueued later are not part of what
    is confirmed.
    """


class AskedAction(Protocol):
    """What a person is asked about, before it is done to one thing."""

    @property
    def name(self) -> str:
        """What the form calls it."""

    @property
    def title(self) -> str:
        """What people call it."""

    @property
    def consequence(self) -> str:
        """What it leads to."""


@dataclass(frozen=True, slots=True)
class SureQuestion:
    """How a person is asked whether something is meant, and where the answer goes."""

    path: str
    """Of the form, below the console."""
    fields: Mapping[str, str]
    """What the form says of the thing: people see it, and it is sent again."""
    leave: str
    """Where the thing is shown."""
    reason_for: str = ""
    """Where the reason is kept; empty where none is asked for."""
    most_reason: int = 1000
    is_final: bool = True

    def view(self, action: AskedAction, what: str) -> View:
        """The page that asks: nothing has been changed."""
        document = {"action": action.name, **self.fields}
        extra = {"action": action, "question": self, "what": what}
        return View("sure_one.html", f"{action.title}?", document, extra=extra)


class FormTaker:
    """Accepts the forms of people who have signed in."""

    def __init__(self, pool: BackendPool, sessions: Sessions | None) -> None:
        self.actions = JobActions(pool)
        self.sessions = sessions

    def session(self, request: Request) -> BrowserSession | None:
        """The session of the browser that asks, signed in here or at the proxy."""
        if self.sessions is None:
            return None
        if request.scope.get(PROXIED):
            return self.sessions.of_proxy(request.scope[CALLER], request.scope[ROLE])
        return self.sessions.find(request.cookies.get(COOKIE))

    async def form(self, request: Request) -> Given:
        """The fields of a form. It may only come from a page of this server."""
        refuse_foreign(request)
        text = (await request.body()).decode("utf-8", "replace")
        try:
            fields = parse_qs(text, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise InvalidParameterError(
                "fields", "are too many", "send fewer", where="form"
            ) from None
        return Given([(name, value) for name, values in fields.items() for value in values])

    def actor(self, request: Request, form: Given) -> BrowserSession:
        """The person who acts. Raises an error for people who may not act, and for a form of
        another session.
        """
        session = self.operator(request)
        given = form.get("secret", "")
        if not hmac.compare_digest(given.encode(), session.form_secret.encode()):
            raise NotAllowedError(
                "this form is not of your present session",
                remedy="load the page again, and send its form",
            )
        return session

    def operator(self, request: Request) -> BrowserSession:
        """The session of a person who may act. Raises an error for others."""
        session = self.session(request)
        if session is None:
            raise NotAllowedError(
                "you have not signed in, or too long ago",
                remedy="sign in with the link beside the theme, then do it again",
            )
        if not session.is_operator:
            raise NotAllowedError(
                f"{session.name} may read and change nothing",
                remedy="list one of your groups as operators under [server.proxy] in the settings"
                if session.is_proxied
                else f'write operators = ["{session.name}"] under [server] in the settings',
            )
        return session

    async def ask(self, action: Action, form: Given) -> BulkQuestion:
        """How many jobs would be changed, and how they were chosen. Nothing is changed."""
        search = search_in(action, form)
        newest = await self.actions.newest(search)
        if newest is None:
            return BulkQuestion(0, wanted_in(form), None)
        search = msgspec.structs.replace(search, below=newest + 1)
        return BulkQuestion(
            await self.actions.count(search), wanted_in(form), cursor_text(newest + 1)
        )

    async def change_many(self, action: Action, form: Given, actor: BrowserSession) -> int:
        """Change the jobs that the person has confirmed, up to a bound. Returns how many.

        Not more than the confirmation said, and none that was enqueued since.
        """
        chosen = "; ".join(f"{name}={','.join(each)}" for name, each in wanted_in(form).items())
        return await self.actions.change_many(
            action,
            search_in(action, form),
            actor.name,
            chosen=chosen or "all jobs that allow it",
            reason=form.get("reason", ""),
            limit=_limit(form),
        )


def refuse_foreign(request: Request) -> None:
    """Refuse a request that a page of another site had a browser send."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    is_ours = origin is None or _host_of(origin) == host.lower()
    if site not in ("same-origin", "none") or not is_ours:
        raise NotAllowedError(
            "this form was sent by a page of another site",
            remedy="open the console itself; a proxy in front must pass on the header Host",
        )


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # No browser sends such a header.
        return None


def action_in(form: Given) -> Action:
    """The action that the form names."""
    found = ACTIONS.get(form.get("action", ""))
    if found is None:
        raise InvalidParameterError(
            "action", "is none of ours", f"send one of {', '.join(ACTIONS)}", where="form"
        )
    return found


def search_in(action: Action, form: Given) -> Search:
    """The jobs that a filter chooses, among those that the action is for."""
    if not action.is_for_many:
        raise InvalidParameterError("action", "is for one job", "send the id", where="form")
    behind = form.get("behind")
    try:
        below = cursor_place(behind, Place) if behind else None
        found = search_of(action, params_of(_filter(form), 1))
    except InvalidParameterError as error:
        raise error.within("form") from None
    return msgspec.structs.replace(found, below=below)


def _limit(form: Given) -> int:
    """The number that the person has seen; without one, as many as one request changes."""
    text = form.get("told", "")
    if not text:
        return MOST_AT_ONCE
    if not (text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS):
        remedy = "load the page again"
        raise InvalidParameterError("told", "is no number of jobs", remedy, where="form")
    return min(int(text), MOST_AT_ONCE)


def edit_in(form: Given) -> JobEdit:
    """The arguments of a form. A field that was left empty keeps the old arguments."""
    return JobEdit(
        args=_json("args", form.get("args", ""), list, '["a.png", 3]'),
        kwargs=_json("kwargs", form.get("kwargs", ""), dict, '{"width": 3}'),
        reason=form.get("reason", "").strip(),
        new_id=form.get("new_id") or None,
    )


def _json(field: str, text: str, kind: type, example: str) -> Any:
    if not text.strip():
        return None
    details = {"field": field}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        problem = f"{field} is no JSON at {where}: {error.msg}"
        raise JobError(problem, remedy=f"write it like {example}", details=details) from None
    except ValueError:  # A number of more digits than Python reads.
        remedy = "write it as text"
        raise JobError(f"{field} has a number too long", remedy=remedy, details=details) from None
    except RecursionError:
        remedy = "keep the data elsewhere"
        raise JobError(f"{field} is nested too deeply", remedy=remedy, details=details) from None
    if not isinstance(value, kind):
        what = "a JSON array" if kind is list else "a JSON object"
        raise JobError(f"{field} is not {what}", remedy=f"write it like {example}", details=details)
    return value


def _filter(form: Given) -> Given:
    return Given([(name, value) for name, value in form.multi_items() if name not in _FORM_ONLY])


def wanted_in(form: Given) -> dict[str, list[str]]:
    """The filter by which a form chooses jobs."""
    chosen = _filter(form)
    return {name: [v for v in chosen.getlist(name) if v] for name in chosen if chosen[name]}
