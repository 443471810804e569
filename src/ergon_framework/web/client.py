"""A client of ``/api/v1`` for programs. Its answers are typed, and it needs the standard library
only.

It needs neither the store nor the packages of the server. Every failure is an :class:`ApiError`
whose ``status``, ``code`` and ``remedy`` are the server's answer.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.web.addresses import address_of

TIMEOUT = 30.0
MAX_ANSWER = 64 << 20
"""How many bytes of an answer are read."""
T = TypeVar("T")


class ApiError(ErgonError):
    """The server has refused a request, or has not answered it. In that case ``status`` is 0."""

    code = "api"

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any]) -> None:
        rest = dict(details)
        super().__init__(message, remedy=rest.pop("remedy", None), details=rest)
        self.status = status
        self.code = code


class ApiFailure(msgspec.Struct, frozen=True):
    """The last failure of a job."""

    kind: str
    code: str
    message: str


class ApiJob(msgspec.Struct, frozen=True):
    """A job as the server returns it. ``args``, ``kwargs`` and ``result`` are filled on request
    only.
    """

    id: str
    status: str
    handler: str
    queue: str
    attempts: int
    deliveries: int
    priority: int
    created_at: str
    run_at: str
    executor: str | None = None
    max_attempts: int | None = None
    last_error: ApiFailure | None = None
    why: str | None = None
    finished_at: str | None = None
    worker: str | None = None
    correlation_id: str | None = None
    tags: list[str] = []
    metadata: dict[str, str] = {}
    history: list[dict[str, Any]] = []
    args: Any = None
    kwargs: Any = None
    result: Any = None


class ApiQueue(msgspec.Struct, frozen=True):
    """A queue with its limits and its counts by status."""

    name: str
    paused: bool
    counts: dict[str, int]
    max_active: int | None = None
    rate: float | None = None
    oldest_due_at: str | None = None


class ApiChange(msgspec.Struct, frozen=True):
    """A job or a flow that was changed, with its new state."""

    id: str
    action: str
    status: str


class ApiEdited(msgspec.Struct, frozen=True):
    """A job that was stored in the place of another one."""

    id: str
    edited_from: str
    is_new: bool


class ApiBulk(msgspec.Struct, frozen=True):
    """How many jobs matched, and how many were changed."""

    action: str
    matched: int
    changed: int
    dry_run: bool


class ApiPaused(msgspec.Struct, frozen=True):
    """A queue that was paused or resumed."""

    queue: str
    paused: bool


class ApiFired(msgspec.Struct, frozen=True):
    """A schedule that was fired, and the job that it enqueued."""

    schedule: str
    id: str


class ApiPausedSchedule(msgspec.Struct, frozen=True):
    """A schedule that was paused or resumed."""

    schedule: str
    paused: bool


class ApiDeletedSchedule(msgspec.Struct, frozen=True):
    """A schedule that was deleted."""

    schedule: str
    deleted: bool


class ApiSchedule(msgspec.Struct, frozen=True):
    """A schedule and when it fires next."""

    name: str
    cron: str
    zone: str
    paused: bool
    source: str
    handler: str | None = None
    queue: str | None = None
    next_at: str | None = None
    last_at: str | None = None


class ApiFlow(msgspec.Struct, frozen=True):
    """A flow. ``why``, ``actions`` and ``signals`` are filled only when one flow was asked for."""

    id: str
    status: str
    on_failure: str
    steps: int
    completed: int
    failed: int
    cancelled: int
    unfinished: int
    created_at: str
    changed_at: str
    name: str | None = None
    purge_at: str | None = None
    why: list[str] = []
    actions: list[str] = []
    signals: list[str] = []


class ApiSetAside(msgspec.Struct, frozen=True):
    """A fact that a zone has set aside, without its content."""

    id: int
    consumer_name: str
    log: str
    offset: int
    reason: str
    state: str
    message: str = ""
    attempts: int = 0


class ApiFact(msgspec.Struct, frozen=True):
    """A fact that was released or discarded, with its new state."""

    zone: str
    id: int
    action: str
    state: str


class _Problem(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] = {}


class _Jobs(msgspec.Struct):
    items: list[ApiJob]
    next_cursor: str | None


class _Schedules(msgspec.Struct):
    items: list[ApiSchedule]
    next_cursor: str | None


class _Queues(msgspec.Struct):
    items: list[ApiQueue]
    next_cursor: str | None


_MOST = 1000
"""How many items the server puts into one page."""


class _Flows(msgspec.Struct):
    items: list[ApiFlow]
    next_cursor: str | None


class _Quarantine(msgspec.Struct):
    items: list[ApiSetAside]
    next_cursor: str | None


class _Why(msgspec.Struct):
    why: list[str]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, because the token must not go to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class ApiClient:
    """Asks one server; safe to share between threads.

    ::

        client = ApiClient("http://127.0.0.1:8400", token="…")
        for job in client.jobs(status=["failed"], queue="mail"):
            client.requeue(job.id)
    """

    def __init__(self, url: str, token: str | None = None, *, timeout: float = TIMEOUT) -> None:
        """``url`` is that of the server. With a ``token`` jobs can be changed."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigurationError(
                "that is not the address of a server",
                remedy='give one such as ApiClient("http://127.0.0.1:8400")',
            )
        self._url = url.rstrip("/") + "/api/v1"
        self._token = token
        self._timeout = timeout
        # No proxy of the environment, because the token is for this server alone.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def __repr__(self) -> str:
        return f"ApiClient({self._url!r})"

    # ---- looking --------------------------------------------------------------------------------

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        queue: str | None = None,
        handler: str | None = None,
        tag: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        error: str | None = None,
        since: str | None = None,
        until: str | None = None,
        payloads: bool = False,
    ) -> Iterator[ApiJob]:
        """The jobs that match, the newest first. They are read page by page."""
        pairs = [f"{name}={value}" for name, value in (metadata or {}).items()]
        query = {
            "status": status,
            "tag": tag,
            "metadata": pairs,
            "queue": queue,
            "handler": handler,
            "error": error,
            "since": since,
            "until": until,
            "payloads": "true" if payloads else None,
        }
        cursor: str | None = None
        while True:
            page = self._get("/jobs", _Jobs, **query, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def job(self, job_id: str, *, payloads: bool = False) -> ApiJob:
        """One job with its history."""
        wanted = "true" if payloads else None
        return self._get(address_of("/jobs", job_id), ApiJob, payloads=wanted)

    def why(self, job_id: str) -> list[str]:
        """Sentences that say why a job is in its state."""
        return self._get(address_of("/jobs", job_id, "/why"), _Why).why

    def queues(self) -> list[ApiQueue]:
        """Every queue, by name."""
        found: list[ApiQueue] = []
        cursor: str | None = None
        while True:
            page = self._get("/queues", _Queues, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    def schedules(self) -> list[ApiSchedule]:
        """Every schedule, by name."""
        found: list[ApiSchedule] = []
        cursor: str | None = None
        while True:
            page = self._get("/schedules", _Schedules, limit=_MOST, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    def flows(self, *, status: Sequence[str] = (), limit: int = 100) -> list[ApiFlow]:
        """The newest flows, in one of these states or in any. Several pages are read if needed."""
        return list(islice(self.all_flows(status=status, page=min(limit, _MOST)), limit))

    def all_flows(self, *, status: Sequence[str] = (), page: int = 100) -> Iterator[ApiFlow]:
        """Every flow in one of these states or in any, the newest first, read in pages."""
        cursor: str | None = None
        while True:
            found = self._get("/flows", _Flows, status=status, limit=page, cursor=cursor)
            yield from found.items
            cursor = found.next_cursor
            if cursor is None:
                return

    def flow(self, flow_id: str) -> ApiFlow:
        """One flow: its state and the reasons, what can be done, and the signals that
        it waits for.
        """
        return self._get(address_of("/flows", flow_id), ApiFlow)

    def quarantine(
        self, zone: str, *, state: str | None = None, consumer: str | None = None
    ) -> Iterator[ApiSetAside]:
        """The facts that are set aside now, the oldest first; with a ``state``, those in that
        state, or ``all``.
        """
        path, cursor = f"/boundary/{quote(zone, safe='')}/quarantine", None
        wanted = {"state": state, "consumer": consumer, "limit": _MOST}
        while True:
            # The largest page: for each one, the server has the zone list all that match.
            found = self._get(path, _Quarantine, **wanted, cursor=cursor)
            yield from found.items
            cursor = found.next_cursor
            if cursor is None:
                return

    # ---- changing -------------------------------------------------------------------------------

    def requeue(self, job_id: str, *, reason: str = "") -> ApiChange:
        """Send a dead-lettered job back with fresh counters."""
        return self._act(job_id, "requeue", reason)

    def retry(self, job_id: str, *, reason: str = "") -> ApiChange:
        """Run a waiting job now, or start one again that failed or was cancelled."""
        return self._act(job_id, "retry", reason)

    def cancel(self, job_id: str, *, reason: str = "") -> ApiChange:
        """Cancel a job that waits, or ask the worker of one that runs to end it."""
        return self._act(job_id, "cancel", reason)

    def delete(self, job_id: str, *, reason: str = "") -> ApiChange:
        """Delete a job that has ended, for good."""
        return self._act(job_id, "delete", reason)

    def edit_and_requeue(
        self,
        job_id: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        reason: str = "",
        new_id: str | None = None,
    ) -> ApiEdited:
        """Send a dead-lettered job back with other arguments, as a new job.

        With a ``new_id``, the call may be repeated when its answer was lost.
        """
        body = {
            "args": None if args is None else list(args),
            "kwargs": None if kwargs is None else dict(kwargs),
            "reason": reason,
            "new_id": new_id,
        }
        return self._post(address_of("/jobs", job_id, "/edit-and-requeue"), body, ApiEdited)

    def retry_flow(self, flow_id: str, *, reason: str = "") -> ApiChange:
        """Run the steps of a flow again that failed or were cancelled."""
        return self._act(flow_id, "retry", reason, "flows")

    def skip_flow(self, flow_id: str, *, reason: str = "") -> ApiChange:
        """Continue a flow without the steps that failed."""
        return self._act(flow_id, "skip", reason, "flows")

    def cancel_flow(self, flow_id: str, *, reason: str = "") -> ApiChange:
        """Cancel the steps of a flow that wait. Steps that run go on to their end."""
        return self._act(flow_id, "cancel", reason, "flows")

    def purge_flow(self, flow_id: str, *, reason: str = "") -> ApiChange:
        """Delete a flow that has ended, with its steps, for good."""
        return self._act(flow_id, "purge", reason, "flows")

    def signal_flow(
        self, flow_id: str, name: str, value: Any = None, *, reason: str = ""
    ) -> ApiChange:
        """Complete the step that waits for a signal; the value is its result."""
        body = {"name": name, "value": value, "reason": reason}
        return self._post(address_of("/flows", flow_id, "/signal"), body, ApiChange)

    def pause_queue(self, queue: str) -> ApiPaused:
        """Start no more jobs of a queue. Jobs that run go on."""
        return self._post(address_of("/queues", queue, "/pause"), {}, ApiPaused)

    def resume_queue(self, queue: str) -> ApiPaused:
        """Start jobs of a paused queue again."""
        return self._post(address_of("/queues", queue, "/resume"), {}, ApiPaused)

    def fire_schedule(self, schedule: str) -> ApiFired:
        """Enqueue the job of a schedule now, besides its fires."""
        return self._post(address_of("/schedules", schedule, "/fire"), {}, ApiFired)

    def pause_schedule(self, schedule: str) -> ApiPausedSchedule:
        """Let a schedule fire no more until it is resumed."""
        return self._post(address_of("/schedules", schedule, "/pause"), {}, ApiPausedSchedule)

    def resume_schedule(self, schedule: str) -> ApiPausedSchedule:
        """Let a schedule fire again; what it missed in its pause is not made up for."""
        return self._post(address_of("/schedules", schedule, "/resume"), {}, ApiPausedSchedule)

    def delete_schedule(self, schedule: str) -> ApiDeletedSchedule:
        """Delete a schedule; jobs that it has enqueued stay.

        One of the settings or of an App comes back with the next worker.
        """
        return self._post(address_of("/schedules", schedule, "/delete"), {}, ApiDeletedSchedule)

    def release_fact(self, zone: str, item: int, *, reason: str = "") -> ApiFact:
        """Deliver a fact that was set aside once more.

        Repeating the call changes nothing while the fact is still released. Later it is refused
        with 409, or releases the fact again if it has failed once more.
        """
        return self._settle(zone, item, "release", reason)

    def discard_fact(self, zone: str, item: int, *, reason: str = "") -> ApiFact:
        """Give a fact up for the consumer that set it aside, for good.

        Repeating the call changes nothing.
        """
        return self._settle(zone, item, "discard", reason)

    def bulk(
        self,
        action: str,
        filter: Mapping[str, Any] | None = None,
        *,
        everything: bool = False,
        dry_run: bool = False,
        limit: int | None = None,
        reason: str = "",
    ) -> ApiBulk:
        """``requeue``, ``cancel`` or ``delete`` all jobs that match; ``dry_run`` only counts them.

        The filter has the fields of :meth:`jobs`, with ``metadata`` as a list of ``KEY=VALUE``.
        """
        body = {
            "action": action,
            "filter": dict(filter or {}),
            "all": everything,
            "dry_run": dry_run,
            "reason": reason,
            **({} if limit is None else {"limit": limit}),
        }
        return self._post("/jobs/bulk", body, ApiBulk)

    # ---- inside ---------------------------------------------------------------------------------

    def _act(self, unit: str, action: str, reason: str, kind: str = "jobs") -> ApiChange:
        where = address_of(f"/{kind}", unit, f"/{action}")
        return self._post(where, {"reason": reason}, ApiChange)

    def _settle(self, zone: str, item: int, action: str, reason: str) -> ApiFact:
        path = f"/boundary/{quote(zone, safe='')}/quarantine/{item}/{action}"
        return self._post(path, {"reason": reason}, ApiFact)

    def _get(self, path: str, kind: type[T], **query: Any) -> T:
        given = {name: value for name, value in query.items() if value not in (None, (), [])}
        mark = ("&" if "?" in path else "?") if given else ""
        return self._asked(path + mark + urlencode(given, doseq=True), None, kind)

    def _post(self, path: str, body: Mapping[str, Any], kind: type[T]) -> T:
        return self._asked(path, json.dumps(body).encode(), kind)

    def _asked(self, path: str, body: bytes | None, kind: type[T]) -> T:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        # The scheme was checked when the client was made.
        request = urllib.request.Request(self._url + path, body, headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return msgspec.json.decode(answer.read(MAX_ANSWER), type=kind)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(MAX_ANSWER)) from None
        except OSError as error:
            problem = getattr(error, "reason", error)
            remedy = "is ergon serve running there? A change may have been made all the same"
            message = f"the server does not answer: {problem}"
            raise ApiError(0, "unreachable", message, {"remedy": remedy}) from error
        except msgspec.MsgspecError as error:
            remedy = "is the address that of ergon serve, and of the same version?"
            message = "the answer is not one of this API"
            raise ApiError(0, "bad_answer", message, {"remedy": remedy}) from error


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        found = msgspec.json.decode(body, type=_Problem)
    except msgspec.MsgspecError:
        return ApiError(status, "bad_answer", f"the server answered {status}", {})
    return ApiError(status, found.code, found.message, found.details)
