"""Which pages there are, below ``/console``."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request, Response
from starlette.datastructures import QueryParams as Given
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse

from ergon_framework.errors import ErgonError, JobError, JobNotFoundError
from ergon_framework.jobs.newjob import new_id
from ergon_framework.web.addresses import address_of
from ergon_framework.web.audit import AUDITED, EDIT, PAUSE, RESUME
from ergon_framework.web.audit import logger as audit
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.console.acting import (
    BulkQuestion,
    FormTaker,
    action_in,
    edit_in,
    refuse_foreign,
    wanted_in,
)
from ergon_framework.web.console.answers import (
    ROOT,
    Answers,
    Frame,
    View,
    address_with,
    format_of,
    path_of,
    unit_of,
)
from ergon_framework.web.console.attention import shown_of
from ergon_framework.web.console.audit_page import (
    AUDIT_COLUMNS,
    audit_document,
    audit_search,
    outcome_chip,
    target_address,
)
from ergon_framework.web.console.events import ChangeEvents
from ergon_framework.web.console.fact_forms import DID as DID_TO_FACT
from ergon_framework.web.console.fact_forms import FactForms
from ergon_framework.web.console.flow_forms import DID as DID_TO_FLOW
from ergon_framework.web.console.flow_forms import FlowForms
from ergon_framework.web.console.formatting import Figure, blocks
from ergon_framework.web.console.job_pages import (
    COLUMNS,
    MOST_READ,
    MOST_SHOWN,
    SHOWN,
    edit_document,
    job_document,
    kind_of,
    list_document,
    params_of,
    readable,
    same_error,
)
from ergon_framework.web.console.overview import JobsLook, Watch, overview_document, queues_document
from ergon_framework.web.console.part_pages import (
    PROVIDER_COLUMNS,
    ZONE_COLUMNS,
    providers_document,
    zone_chip,
    zones_document,
)
from ergon_framework.web.console.reading import ReadingPages
from ergon_framework.web.console.schedule_forms import DID as DID_TO_SCHEDULE
from ergon_framework.web.console.schedule_forms import ScheduleForms
from ergon_framework.web.console.sharing import SharedAnswers, SharedLook, ViewerPlaceholders
from ergon_framework.web.console.work_pages import (
    FAMILY_COLUMNS,
    SCHEDULE_COLUMNS,
    WORKER_COLUMNS,
    dead_letters_document,
    families_page,
    pools_of,
    schedules_document,
    workers_document,
)
from ergon_framework.web.files_to_come import for_pages
from ergon_framework.web.job_actions import (
    ACTIONS,
    DELETED,
    MOST_AT_ONCE,
    Action,
    actions_for,
    actions_for_all,
)
from ergon_framework.web.middleware import (
    CALLER,
    EVENTS,
    PROXIED,
    ROLE,
    SIGN_IN,
    caller_of,
    route_path,
)
from ergon_framework.web.responses import (
    MAX_PAGE,
    InvalidParameterError,
    LateAnswerError,
    NotAllowedError,
    ResourceNotFoundError,
    UnknownOutcomeError,
    answer_of,
)
from ergon_framework.web.sessions import COOKIE, LIFETIME, BrowserSession, Sessions
from ergon_framework.web.tokens import CallerRole

logger = logging.getLogger("ergon.web")
Shown = Callable[[Request], Awaitable[View | Response]]
QUEUE_COLUMNS = (
    "name",
    "state.text",
    "counts.pending",
    "counts.retrying",
    "counts.active",
    "counts.failed",
    "counts.completed",
    "counts.cancelled",
    "oldest_due",
    "done_per_second",
    "max_active",
    "rate",
    "pinned_version",
)
MOST_QUEUES = 100
"""How many queues a page shows."""
MOST_FAMILIES = 30
"""How many families of dead letters a page shows; each has forms."""
MANY_WATCHERS = 10
"""The number of open pages from which on they share what is shown; it may then be a second old."""
_SHARED = ("", "/queues", "/jobs", "/flows", "/dead-letters", "/workers")
"""The pages that are updated while open, and look the same for everybody with one role."""
FIGURES_TIMEOUT = 1.0
"""Seconds that a finished page waits for the figures beside it."""


class _PageFailedError(ErgonError):
    """The error for what nobody has foreseen. The caller gets none of its text."""

    code = "internal"

    def __init__(self) -> None:
        super().__init__("the server failed", remedy="its log says how")


class Console:
    """The pages of one server."""

    def __init__(
        self, pool: BackendPool, sessions: Sessions | None, stopping: threading.Event
    ) -> None:
        self._pool = pool
        self._taker = FormTaker(pool, sessions)
        self._watch = Watch(pool)
        jobs = pool.backends.jobs
        self._answers = Answers("" if jobs is None else jobs.setup.url)
        self._reading = ReadingPages(pool)
        self._dead = SharedLook(partial(self._asked, dead_letters_document))
        self._events = ChangeEvents(self._mark, stopping)
        self._pages: SharedAnswers[Response] = SharedAnswers()
        self._placeholders = ViewerPlaceholders()

    async def _mark(self) -> str:
        return f"{await self._watch.mark()}-{await self._reading.mark()}"

    def router(self) -> APIRouter:
        """All pages. They are not part of the API, whose lists stay as they are.

        They are routes of Starlette, because FastAPI would read parameters that none of them
        declares.
        """
        router = APIRouter(include_in_schema=False)
        pages: dict[str, Shown] = {
            "": self._overview,
            "/queues": self._queues,
            "/jobs": self._jobs,
            "/find": self._find,
            "/audit": self._audit,
            "/edit/{job_id:path}": self._edit_page,
            "/jobs/{job_id:path}": self._job,
            "/dead-letters": self._dead_letters,
            "/schedules": self._schedules,
            "/workers": self._workers,
            "/zones": self._zones,
            "/providers": self._providers,
            **self._reading.pages(),
        }
        for path in ("/", f"{ROOT}/"):
            router.add_route(path, self._entrance, ["GET"])
        router.add_route(f"{ROOT}/static/{{name}}", self._static, ["GET"])
        router.add_api_route(EVENTS, self._changes, response_model=None)  # which refuses HEAD
        # Before the pages of one thing: otherwise these would be addresses with an empty id, or
        # with a name that ends in a slash.
        for path in ("/jobs/", "/flows/", "/traces/", "/zones/", "/zones/{zone:path}/"):
            router.add_route(ROOT + path, self._slashed, ["GET"])
        for path, show in pages.items():
            page = self._page(show, may_share=path in _SHARED)
            router.add_route(ROOT + path, page, ["GET"])
        if self._taker.sessions is not None:
            forms: dict[str, Shown] = {
                "/sign-in": self._sign_in,
                "/sign-out": self._sign_out,
                "/change": self._change,
                "/edit/{job_id:path}": self._edit,
                "/pause": self._pause,
                "/fire": ScheduleForms(self._taker).fire,
                "/schedule": ScheduleForms(self._taker).change,
                "/flow": FlowForms(self._taker).change,
                "/fact": FactForms(self._taker, self._pool).change,
            }
            router.add_route(SIGN_IN, self._page(self._entry), ["GET"])
            for path, take in forms.items():
                router.add_route(ROOT + path, self._page(take), ["POST"])
        router.add_route(f"{ROOT}/{{rest:path}}", self._page(self._missing), ["GET"])
        return router

    def _page(
        self, show: Shown, *, may_share: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self._taker.session(request)
            is_many = may_share and self._events.watchers >= MANY_WATCHERS
            if not is_many or format_of(request) != "html" or "did" in request.query_params:
                return await self._answer(request, show, session)
            # One rendering for all viewers with a role. What belongs to one viewer is filled in
            # afterwards.
            shared = self._placeholders.session(session)
            who = None if shared is None else (shared.role, shared.is_proxied)
            question = (
                request.scope.get(ROLE),
                who,
                request.scope.get("root_path"),
                path_of(request),
                request.url.query,
            )
            look = partial(self._answer, request, show, shared)
            return self._placeholders.fill(await self._pages.get(question, look), session)

        return answer

    async def _answer(
        self, request: Request, show: Shown, session: BrowserSession | None
    ) -> Response:
        # Concurrently with the page, which would otherwise wait twice for a store that hangs.
        figures = asyncio.ensure_future(self._figures(request))
        problem: ErgonError
        try:
            found = await self._in_time(request, show)
            if not isinstance(found, View):
                return found
            frame = await self._frame(request, figures, session)
            return self._answers.show(request, found, frame, found.status)
        except ErgonError as error:
            problem = error
        # The client left before its whole form had come, so nobody reads an answer.
        except ClientDisconnect:
            return Response(status_code=400)
        # For example a row that no version of Ergon has written; a person reads this page.
        except Exception:
            logger.exception("the page %s failed", request.url.path)
            problem = _PageFailedError()
        return self._answers.error(request, problem, await self._frame(request, figures, session))

    async def _in_time(self, request: Request, show: Shown) -> View | Response:
        """Render a page. Raises an error before the request's time is over, which would give no
        page.
        """
        seconds = self._pool.page_seconds
        try:
            async with asyncio.timeout(seconds):
                return await show(request)
        except TimeoutError:
            if request.method == "POST":
                raise UnknownOutcomeError from None
            raise LateAnswerError(seconds) from None

    async def _frame(
        self,
        request: Request,
        figures: asyncio.Task[Mapping[str, Figure]],
        session: BrowserSession | None,
    ) -> Frame:
        """What every page has around its content. It waits for its figures only for a moment."""
        await asyncio.wait({figures}, timeout=FIGURES_TIMEOUT)
        did = _DID.get(request.query_params.get("did", ""))
        counts = figures.result() if figures.done() else {}
        return Frame(counts, self._taker.sessions is not None, session, did)

    async def _figures(self, request: Request) -> Mapping[str, Figure]:
        """The figures beside the links. People who have not signed in get none."""
        is_stranger = CALLER not in request.scope
        if is_stranger or format_of(request) != "html":
            return {}
        try:
            return await self._watch.counts()
        except Exception:  # Pages that do not need the store that fails are shown all the same.
            logger.exception("the figures beside the pages cannot be told")
            return {}

    async def _entrance(self, request: Request) -> Response:
        return RedirectResponse(request.scope.get("root_path", "") + ROOT, 307)

    async def _changes(self) -> Response:
        return self._events.response()

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._answers.static:
            raise ResourceNotFoundError("there is no such file", remedy=f"{ROOT} links those")
        return self._answers.file(name)

    async def _slashed(self, request: Request) -> Response:
        """Redirect an address with one slash too many."""
        query = request.url.query
        return RedirectResponse(path_of(request).rstrip("/") + (f"?{query}" if query else ""), 307)

    async def _missing(self, request: Request) -> View | Response:
        if route_path(request.scope).endswith("/"):
            return await self._slashed(request)
        remedy = "the links beside this text lead to every page that there is"
        raise ResourceNotFoundError("there is no such page", remedy=remedy)

    async def _overview(self, _request: Request) -> View:
        document = overview_document(await self._watch.overview())
        rows = None if document["jobs"] is None else document["jobs"]["queues"]
        extra = {"attention": shown_of(document["attention"])}
        return View("overview.html", "Overview", document, rows, QUEUE_COLUMNS, extra, is_live=True)

    async def _queues(self, request: Request) -> View:
        wanted, after = (request.query_params.get(each, "") for each in ("name", "after"))
        limit = MOST_QUEUES if format_of(request) == "html" else MAX_PAGE
        look, source = await self._look(), self._pool.jobs()
        question = partial(queues_document, source, look, wanted, after, limit)
        found = await self._pool.call("jobs", question)
        extra = {"wanted": wanted, "following": found.pop("following")}
        rows = found["items"]
        return View("queues.html", "Queues", found, rows, QUEUE_COLUMNS, extra, is_live=True)

    async def _jobs(self, request: Request) -> View:
        source = self._pool.jobs()
        is_page = format_of(request) == "html"
        asked = params_of(request.query_params, SHOWN if is_page else MAX_PAGE)
        if is_page and asked.limit > MOST_SHOWN:
            asked = asked.model_copy(update={"limit": MOST_SHOWN})
        document = await self._pool.call("jobs", partial(list_document, source, asked))
        extra: dict[str, Any] = {
            "asked": asked,
            "following": None,
            "actions": actions_for_all(asked.status),
        }
        if document["next_cursor"] is not None:
            extra["following"] = address_with(request, cursor=document["next_cursor"])
        is_newest = asked.cursor is None
        rows = document["items"]
        return View("jobs.html", "Jobs", document, rows, COLUMNS, extra, is_live=is_newest)

    async def _job(self, request: Request) -> View:
        job_id = unit_of(request, "job_id")
        source, look = self._pool.jobs(), await self._look()
        is_wanted = request.query_params.get("payloads") in ("true", "1")
        is_whole = is_wanted and self._pool.shows_payloads
        if is_whole:
            await self._pool.note_look(caller_of(request.scope), job_id)
        question = partial(job_document, source, job_id, is_whole=is_whole)
        document = await self._pool.call("jobs", question)
        extra = {
            "blocks": blocks(document["sentences"]),
            "same": same_error(look, document),
            "may_show": self._pool.shows_payloads,
            "is_whole": is_whole,
            "readable": readable,
            "most_read": MOST_READ,
            "actions": actions_for(document["status"]),
        }
        is_over = document["finished_at"] is not None
        return View("job.html", document["handler"], document, extra=extra, is_live=not is_over)

    async def _dead_letters(self, request: Request) -> View:
        most, cursor = _part_of(request, MOST_FAMILIES)
        found = families_page(await self._dead.get(), most, cursor)
        extra, rows = _pages(request, found), found["items"]
        title = "Dead letters"
        return View("dead_letters.html", title, found, rows, FAMILY_COLUMNS, extra, is_live=True)

    async def _schedules(self, request: Request) -> View:
        most, cursor = _part_of(request, SHOWN)
        found = await self._asked(partial(schedules_document, limit=most, cursor=cursor))
        extra, rows = _pages(request, found), found["items"]
        return View("schedules.html", "Schedules", found, rows, SCHEDULE_COLUMNS, extra)

    async def _workers(self, request: Request) -> View:
        most, cursor = _part_of(request, SHOWN)
        found = await self._asked(partial(workers_document, limit=most, cursor=cursor))
        extra = {"pools_of": pools_of, **_pages(request, found)}
        rows = found["items"]
        return View("workers.html", "Workers", found, rows, WORKER_COLUMNS, extra, is_live=True)

    async def _zones(self, _request: Request) -> View:
        found = await zones_document(self._pool)
        extra = {"zone_chip": zone_chip}
        return View("zones.html", "Zones", found, found["items"], ZONE_COLUMNS, extra)

    async def _providers(self, _request: Request) -> View:
        found = await providers_document(self._pool)
        return View("providers.html", "Providers", found, found["items"], PROVIDER_COLUMNS)

    async def _asked(self, document: Callable[[JobBackend], dict[str, Any]]) -> dict[str, Any]:
        """The answer of the job store."""
        return await self._pool.call("jobs", partial(document, self._pool.jobs()))

    async def _find(self, request: Request) -> Response:
        given = request.query_params.get("q", "")
        wanted = given.strip()
        root = request.scope.get("root_path", "") + ROOT
        if not wanted:
            return RedirectResponse(f"{root}/jobs", 303)
        missing: ErgonError | None = None
        try:
            kind = await self._pool.call("jobs", partial(kind_of, self._pool.jobs(), wanted))
            if not kind and given != wanted:  # An id may begin or end with a space.
                kind = await self._pool.call("jobs", partial(kind_of, self._pool.jobs(), given))
                wanted = given if kind else wanted
        except ErgonError as error:  # A trace is found without a job store.
            kind, missing = None, error
        if kind:
            return RedirectResponse(address_of(f"{root}/{kind}", wanted), 303)
        if await self._reading.has_trace(wanted):
            return RedirectResponse(address_of(f"{root}/traces", wanted), 303)
        raise missing or JobNotFoundError(
            "there is no job, no flow and no trace with this id",
            remedy="look for it by queue, handler or tag on the page of jobs; what ended long ago"
            " has been deleted",
        )

    async def _entry(self, request: Request) -> View:
        """The form to sign in with. Opening it uses nothing up."""
        extra = {
            "once": request.query_params.get("once", ""),
            "has_tokens": self._sessions().has_tokens,
            "is_unknown": COOKIE in request.cookies and self._taker.session(request) is None,
        }
        return View("sign_in.html", "Sign in", {}, extra=extra)

    async def _sign_in(self, request: Request) -> Response:
        sessions, form = self._sessions(), await self._taker.form(request)
        address = "" if request.client is None else request.client.host
        if sessions.is_refused(address):
            raise NotAllowedError(
                "too many wrong tokens came from your address", remedy="try again in a minute"
            )
        cookie = sessions.sign_in(form.get("token", "").strip(), address)
        if cookie is None:
            audit.warning("a wrong token was given at the console by %s", address or "somebody")
            remedy = "use the newest link that ergon serve has printed: each works once"
            if sessions.has_tokens:
                remedy = "give one of the tokens that the server was started with"
            raise NotAllowedError("that is no token of this server", remedy=remedy)
        found = sessions.find(cookie)
        audit.info("%s signed in", "somebody" if found is None else found.name)
        answer = RedirectResponse(_root(request), 303)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=int(LIFETIME),
            path=request.scope.get("root_path", "") or "/",
            # A header that says so may be false, and only makes the cookie stricter.
            secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _sign_out(self, request: Request) -> Response:
        refuse_foreign(request)
        self._sessions().end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse(_root(request), 303)
        answer.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/")
        return answer

    async def _change(self, request: Request) -> View | Response:
        """Do what a form asks for, or ask the person to confirm it."""
        form = await self._taker.form(request)
        actor, action = self._taker.actor(request, form), action_in(form)
        is_sure = form.get("sure") == "yes"
        job_id = form.get("id", "")
        # Without the field, the filter chooses; an empty filter chooses all.
        if "id" in form and not job_id:
            raise InvalidParameterError("id", "is empty", "send the id of a job", where="form")
        if job_id:
            if action.asks_first and not is_sure:
                await self._taker.actions.check_job(job_id)
                return _question(action, form, BulkQuestion(1, {"id": [job_id]}, None))
            reason = form.get("reason", "").strip()
            state = await self._taker.actions.change_one(action, job_id, actor.name, reason)
            if state == DELETED:
                return RedirectResponse(f"{_root(request)}/jobs?did={action.name}", 303)
            return _shown(request, job_id, action.name)
        if not is_sure:
            return _question(action, form, await self._taker.ask(action, form))
        done = await self._taker.change_many(action, form, actor)
        document = {"action": action.name, "done": done}
        extra: dict[str, Any] = {"action": action, "most": MOST_AT_ONCE}
        wanted = wanted_in(form)
        extra |= {"wanted": wanted, "listed": _listed(wanted)}
        return View("changed.html", f"{action.title}: done", document, extra=extra)

    async def _pause(self, request: Request) -> Response:
        """Pause or resume a queue. Either undoes the other, so no confirmation is needed."""
        form = await self._taker.form(request)
        actor, wanted = self._taker.actor(request, form), form.get("action", "")
        if wanted not in (PAUSE, RESUME):
            remedy = f"send {PAUSE} or {RESUME}"
            raise InvalidParameterError("action", "is none of ours", remedy, where="form")
        queue = form.get("queue", "")
        await self._taker.actions.pause(queue, actor.name, is_paused=wanted == PAUSE)
        return RedirectResponse(f"{_root(request)}/queues?name={quote(queue)}&did={wanted}", 303)

    async def _audit(self, request: Request) -> View:
        """The audit log, for those who may read it, because it is about people."""
        if request.scope.get(ROLE) is not CallerRole.ADMIN:
            remedy = f'write admins = ["{caller_of(request.scope)}"] under [server] in the settings'
            if request.scope.get(PROXIED):
                remedy = "list one of your groups as admins under [server.proxy] in the settings"
            raise NotAllowedError("only an admin may read the audit log", remedy=remedy)
        limit = SHOWN if format_of(request) == "html" else MAX_PAGE
        search = audit_search(request.query_params)
        question = partial(audit_document, self._pool.audit, search, limit)
        # In a thread, because a locked file makes the caller wait.
        found = await asyncio.to_thread(question)
        extra: dict[str, Any] = {"known": AUDITED, "target_address": target_address}
        extra |= {"outcome_chip": outcome_chip, "following": None}
        if found["next_cursor"] is not None:
            extra["following"] = address_with(request, cursor=found["next_cursor"])
        return View("audit.html", "Audit log", found, found["items"], AUDIT_COLUMNS, extra)

    async def _edit_page(self, request: Request) -> View:
        """The form with the arguments of a dead letter, for a person who has asked for them."""
        self._taker.operator(request)
        job_id, may_show = unit_of(request, "job_id"), self._pool.shows_payloads
        is_whole = may_show and request.query_params.get("payloads") in ("true", "1")
        if is_whole:
            await self._pool.note_look(caller_of(request.scope), job_id, "to edit them")
        question = partial(edit_document, self._pool.jobs(), job_id, is_whole=is_whole)
        document = await self._pool.call("jobs", question)
        texts = {name: readable(document[name]) for name in ("args", "kwargs") if is_whole}
        form = {"new_id": new_id(), "args": "", "kwargs": "", "reason": "", **texts}
        return _edit_view(document, form, may_show=may_show and not is_whole)

    async def _edit(self, request: Request) -> View | Response:
        """Store the edited job. A form with a mistake is shown again with what was typed."""
        form = await self._taker.form(request)
        actor, job_id = self._taker.actor(request, form), unit_of(request, "job_id")
        try:
            made = await self._taker.actions.edit(job_id, edit_in(form), actor.name)
        except JobError as error:
            if isinstance(error, JobNotFoundError):
                raise
            question = partial(edit_document, self._pool.jobs(), job_id, is_whole=False)
            document = await self._pool.call("jobs", question)
            typed = {name: form.get(name, "") for name in ("new_id", "args", "kwargs", "reason")}
            return _edit_view(document, typed, may_show=False, problem=error)
        return _shown(request, made, EDIT)

    def _sessions(self) -> Sessions:
        if self._taker.sessions is None:
            raise ResourceNotFoundError(
                "nobody can sign in here", remedy="start the server with ergon serve"
            )
        return self._taker.sessions

    async def _look(self) -> JobsLook:
        found = await self._watch.jobs()
        if found is None:
            self._pool.jobs()  # The answer says that there is no job store, and where to name one.
            raise AssertionError
        return found


_DID = {each.name: f"The job was {each.done}." for each in ACTIONS.values()}
_DID |= DID_TO_FLOW | DID_TO_FACT | DID_TO_SCHEDULE
_DID[PAUSE] = "The queue was paused: what runs goes on, and nothing else is started."
_DID[RESUME] = "The queue was resumed: its jobs are started again."
_DID[EDIT] = "This job was stored in the place of the other one, which is cancelled."


def _edit_view(
    document: Mapping[str, Any],
    form: Mapping[str, Any],
    *,
    may_show: bool,
    problem: JobError | None = None,
) -> View:
    extra = {"form": form, "may_show": may_show, "problem": problem}
    status = 200 if problem is None else answer_of(problem).status_code
    return View("edit.html", "Edit and requeue", document, extra=extra, status=status)


def _question(action: Action, form: Given, asked: BulkQuestion) -> View:
    """The page that asks for confirmation: what would be done, and to how many jobs."""
    document = {"action": action.name, "would_change": asked.number, "filter": asked.wanted}
    extra: dict[str, Any] = {"action": action, "most": MOST_AT_ONCE}
    extra["reason"] = form.get("reason", "")
    extra |= {"behind": asked.behind, "listed": _listed(asked.wanted)}
    return View("sure.html", f"{action.title}?", document, extra=extra)


def _listed(wanted: Mapping[str, Any]) -> str:
    """The list of the jobs, or the page of the only one, that a form is about."""
    if "id" in wanted:
        return address_of("/jobs", wanted["id"][0])
    return f"/jobs?{urlencode(wanted, doseq=True)}" if wanted else "/jobs"


def _part_of(request: Request, shown: int) -> tuple[int, str | None]:
    """How many rows of a list are wanted, and after which place."""
    most = shown if format_of(request) == "html" else MAX_PAGE
    return most, request.query_params.get("cursor") or None


def _pages(request: Request, found: Mapping[str, Any]) -> dict[str, Any]:
    """The links from a part of a list to its beginning and to the next part."""
    cursor = found["next_cursor"]
    return {
        "is_first": not request.query_params.get("cursor"),
        "following": None if cursor is None else address_with(request, cursor=cursor),
    }


def _shown(request: Request, job_id: str, did: str) -> Response:
    """The page of a job, which says what was done to it."""
    return RedirectResponse(address_of(f"{_root(request)}/jobs", job_id, did=did), 303)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")) + ROOT


def console_routes(
    pool: BackendPool, sessions: Sessions | None, stopping: threading.Event
) -> APIRouter:
    """The routes of the console. Without ``sessions``, nobody can sign in to act.

    Open pages are closed when ``stopping`` is set.
    """
    return Console(pool.over(for_pages(pool.backends)), sessions, stopping).router()
