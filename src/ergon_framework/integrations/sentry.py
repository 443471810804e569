"""Failures of units of work as Sentry issues: one issue for each family of failures.

::

    import sentry_sdk
    from ergon_framework.integrations.sentry import ErgonIntegration

    sentry_sdk.init(dsn="...", integrations=[ErgonIntegration()])

A unit that failed for good becomes one event. Its fingerprint is the kind of the unit, the handler,
and the code of the failure, so a thousand dead letters with one cause are one issue. Attempts that
are followed by another are breadcrumbs of that event. Whatever else is captured inside a unit, by
the user's code or by Sentry's own integrations, has the unit's ids as tags.

Who reports: a transaction or a provider call, the process that runs it; a job, the worker, which
alone knows that it was the last attempt, and which also sees executors die. So the worker needs
Sentry as well: ``set_up`` is for ``[telemetry] setup``.

Payloads never leave. Stack traces have no local variables, messages are cut and searched for
secrets, and the values that pydantic quotes are left out.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import route
from ergon_framework.errors import MissingExtraError, TransactionException, describe
from ergon_framework.ports.context import Attempt, current_unit
from ergon_framework.ports.notice import CATALOGUE, Notice
from ergon_framework.ports.unit_of_work import OBSERVERS, UnitOfWork
from ergon_framework.redaction import redacted_text
from ergon_framework.telemetry.notices import add_listener

try:
    import sentry_sdk
    from sentry_sdk.integrations import Integration
    from sentry_sdk.integrations.argv import ArgvIntegration
    from sentry_sdk.scope import Scope, use_isolation_scope
    from sentry_sdk.utils import current_stacktrace, event_from_exception
except ImportError as error:
    raise MissingExtraError(
        f"ergon_framework.integrations.sentry needs sentry-sdk ({describe(error)})",
        remedy='pip install "ergon-framework[sentry]"',
    ) from error

__all__ = ["ErgonIntegration", "set_up"]

MAX_UNITS = 10_000
"""How many units' breadcrumbs are kept until the units end; the oldest are dropped first."""
MAX_TEXT = 500
"""How many characters a message may have."""
_HOOKS = frozenset({"process", "produce", "success", "exception"})
_FAILED = frozenset({"failed", "timed_out"})
_QUOTED = re.compile(r"input_value=.*?, input_type=", re.DOTALL)  # as pydantic writes it
_FRAME = re.compile(r"  (?! )(?P<file>.+):(?P<line>\d+) in (?P<name>.+)")
_LED_TO = "which led to:"
_LOGGERS = frozenset({"ergon.engine", "ergon.jobs"})
_STACKS = frozenset({"exception", "stacktrace", "threads"})
"""The keys of an event that may hold a stack. Sentry attaches one where there is none."""


class ErgonIntegration(Integration):
    """Give it to ``sentry_sdk.init``.

    With ``retries`` each attempt that is followed by another is an event as well, as a warning of
    the same issue. Without ``business``, failures that the user's code declared as business ones
    are no events; with it they are warnings. ``local_variables`` lets the events that your own code
    captures inside a unit keep the variables of their stack, as Sentry has it; ours never have any.
    """

    identifier = "ergon"
    origin = "auto.queue.ergon"

    def __init__(
        self, *, retries: bool = False, business: bool = True, local_variables: bool = False
    ) -> None:
        self.retries = retries
        self.business = business
        self.local_variables = local_variables

    @staticmethod
    def setup_once() -> None:
        """Start listening. Sentry calls this once in a process."""
        reporter = _Reporter()
        add_listener(reporter)
        OBSERVERS.append(reporter.around)
        # On the global scope, so that it runs after what other integrations add to an event.
        Scope.get_global_scope().add_event_processor(_reviewed)


def set_up() -> None:
    """Initialise Sentry from its own variables (``SENTRY_DSN`` and others), unless that was done.

    For processes that import no code of yours, such as a worker: in ``ergon.toml`` under
    ``[telemetry]``, write ``setup = "ergon_framework.integrations.sentry:set_up"``.
    """
    if not sentry_sdk.is_initialized():
        # The arguments of a command may be those of a job.
        sentry_sdk.init(
            integrations=[ErgonIntegration()], disabled_integrations=[ArgvIntegration()]
        )


@dataclass
class _Unit:
    """What is kept of a unit until it ends: its breadcrumbs, and the last exception."""

    scope: Scope
    error: BaseException | None = None
    attempts: int = 1
    owner: object = None  # Keeps the id of the object from being given to another one.


K = TypeVar("K")


class _Recent(Generic[K]):
    """The latest units that have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._units: OrderedDict[K, _Unit] = OrderedDict()

    def find(self, key: K, unit: UnitOfWork | None = None, owner: object = None) -> _Unit:
        """The unit with this key, created if needed."""
        with self._lock:
            known = self._units.get(key)
            if known is None:
                known = self._units[key] = _Unit(_new_scope(unit), owner=owner)
                if len(self._units) > MAX_UNITS:
                    self._units.popitem(last=False)
            return known

    def pop(self, key: K) -> _Unit | None:
        """Remove the unit with this key, which has ended."""
        with self._lock:
            return self._units.pop(key, None)


class _Reporter:
    """Receives notices, and wraps attempts of jobs and calls. The current Sentry client is looked
    up each time.
    """

    def __init__(self) -> None:
        self._runs: _Recent[int] = _Recent()
        self._jobs: _Recent[str] = _Recent()
        self._calls: _Recent[str] = _Recent()
        self._handlers: dict[str, Callable[[ErgonIntegration, Notice], None]] = {
            "attempt.ended": self._attempt_ended,
            "retry.scheduled": self._retry_scheduled,
            "transaction.ended": self._transaction_ended,
            "job.retrying": self._job_retrying,
            "job.dead_lettered": self._job_dead_lettered,
            "provider.failed": self._call_failed,
            "fact.quarantined": self._fact_quarantined,
        }
        self.passes_over = frozenset(CATALOGUE) - self._handlers.keys()

    def __call__(self, notice: Notice) -> None:
        """Take note of something that happened."""
        handler = self._handlers.get(notice.name)
        chosen = None if handler is None else _chosen()
        if handler is not None and chosen is not None:
            handler(chosen, notice)

    # -- transactions ------------------------------------------------------------------------

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Let all attempts of a transaction share one scope, and no two transactions
        the same one.
        """
        run = attempt.run
        if run is not None and _chosen() is not None:
            kept = self._runs.find(id(run), _of_run(attempt.call, run), run)
            context.run(_use, kept.scope)

    def _attempt_ended(self, _: ErgonIntegration, notice: Notice) -> None:
        attempt, failure = notice["attempt"], notice["failure"]
        if failure is None or attempt.phase not in _HOOKS:
            return
        run = attempt.run
        kept = self._runs.find(id(run), _of_run(notice["call"], run), run)
        _leave_breadcrumb(kept.scope, f"{attempt.phase}, attempt {attempt.number + 1}", failure)
        if attempt.phase != "exception":  # The handler's own failure is reported beside it.
            kept.error, kept.attempts = _raised(notice["exception"]), attempt.number + 1

    def _retry_scheduled(self, chosen: ErgonIntegration, notice: Notice) -> None:
        run = notice["run"]
        if chosen.retries and run is not None:
            unit = _of_run(notice["call"], run)
            kept = self._runs.find(id(run), unit, run)
            unit = unit._replace(attempt=kept.attempts)
            _capture(kept.scope, unit, notice["failure"], kept.error, level="warning")

    def _transaction_ended(self, chosen: ErgonIntegration, notice: Notice) -> None:
        run, failure = notice["run"], notice["failure"]
        kept = self._runs.pop(id(run))
        if notice["ending"] not in _FAILED or failure is None:
            return
        unit = _of_run(notice["call"], run)
        kept = kept or _Unit(_new_scope(unit))
        unit = unit._replace(attempt=kept.attempts)
        if notice["handler_failure"] is not None:
            handler_failure = notice["handler_failure"]
            own = Failure(
                handler_failure.kind, f"handler: {handler_failure.code}", handler_failure.message
            )
            _capture(kept.scope, unit, own, _raised(run.handler_exception))
        if _is_job(run.transaction):  # Its queue may deliver it again, and reports it otherwise.
            self._jobs.find(unit.id, unit).error = kept.error
        elif chosen.business or failure.kind is not Kind.REJECTED:
            _capture(kept.scope, unit, failure, kept.error)

    # -- jobs --------------------------------------------------------------------------------

    def _job_retrying(self, chosen: ErgonIntegration, notice: Notice) -> None:
        unit, failure = _of_job(notice), notice["failure"]
        kept = self._jobs.find(unit.id, unit)
        if failure is not None:
            _leave_breadcrumb(kept.scope, f"attempt {unit.attempt}", failure)
            if chosen.retries:
                trace = notice.fields.get("traceback")
                _capture(kept.scope, unit, failure, kept.error, trace, level="warning")

    def _job_dead_lettered(self, chosen: ErgonIntegration, notice: Notice) -> None:
        unit, why = _of_job(notice), notice["why"] or "given_up"
        kept = self._jobs.pop(unit.id) or _Unit(_new_scope(unit))
        failure = notice["failure"] or Failure(Kind.REJECTED, why, why)
        if chosen.business or failure.kind is not Kind.REJECTED:
            kept.scope.set_tag("ergon.queue", notice.fields.get("queue") or "")
            _capture(kept.scope, unit, failure, kept.error, notice.fields.get("traceback"))

    # -- provider calls ----------------------------------------------------------------------

    @contextmanager
    def around(self, unit: UnitOfWork) -> Iterator[None]:
        """Wraps an attempt of a job, in its executor, or of a provider call."""
        if _chosen() is None:
            yield
        elif unit.kind == "call":
            with self._around_call(unit):
                yield
        else:
            with use_isolation_scope(_new_scope(unit)):
                yield

    @contextmanager
    def _around_call(self, unit: UnitOfWork) -> Iterator[None]:
        """Inside another unit, attempts are breadcrumbs of that unit, and its event reports the
        end.
        """
        is_alone = current_unit() is None
        try:
            yield
        except Exception as error:
            scope = sentry_sdk.get_isolation_scope()
            if is_alone:
                kept = self._calls.find(unit.id, unit)
                kept.error, scope = error, kept.scope
            # The reason code is not known before the call ends; the notice "provider.failed" has
            # it.
            failure = Failure(Kind.TRANSIENT, type(error).__name__, describe(error))
            _leave_breadcrumb(scope, f"{unit.name}, attempt {unit.attempt}", failure)
            raise
        except BaseException:  # Cancelled: no notice reports its end.
            if is_alone:
                self._calls.pop(unit.id)
            raise
        if is_alone:
            self._calls.pop(unit.id)

    def _call_failed(self, _: ErgonIntegration, notice: Notice) -> None:
        get = notice.fields.get
        kept = self._calls.pop(str(get("call_id")))
        if kept is None:
            return  # It was part of another unit.
        name = f"{get('provider_name')}/{get('capability')}/{get('operation')}"
        unit = UnitOfWork("call", str(get("call_id")), name, int(get("attempt") or 1))
        text = "" if kept.error is None else describe(kept.error)
        code = str(get("reason_code") or "failed")
        _capture(kept.scope, unit, Failure(Kind.TRANSIENT, code, text), kept.error)

    # -- facts -------------------------------------------------------------------------------

    def _fact_quarantined(self, _: ErgonIntegration, notice: Notice) -> None:
        get = notice.fields.get
        unit = UnitOfWork("fact", str(get("offset")), str(get("consumer")), int(get("attempts", 1)))
        failure = Failure(Kind.DEFECT, "quarantined", str(get("why")))
        _capture(_new_scope(unit), unit, failure, None)


def _chosen() -> ErgonIntegration | None:
    """The integration of the current Sentry client. None when it is switched off."""
    found = sentry_sdk.get_client().get_integration(ErgonIntegration)
    return found if isinstance(found, ErgonIntegration) else None


def _of_run(call: Any, run: Any) -> UnitOfWork:
    transaction = run.transaction
    correlation = transaction.correlation_id
    return UnitOfWork("transaction", transaction.transaction_id, call.task, 1, None, correlation)


def _of_job(notice: Notice) -> UnitOfWork:
    # Without the executor that a job may name: events that a handler captures lack it, too.
    handler = route(str(notice.fields.get("handler") or ""))[1] or "(unknown)"
    return UnitOfWork("job", str(notice["job_id"]), handler, int(notice["attempt"] or 0))


def _raised(error: BaseException | None) -> BaseException | None:
    """The exception that the user's code raised; the engine wraps it in one of its own."""
    if error is None or type(error) is not TransactionException:
        return error
    return error if error.__traceback__ is not None else error.__cause__ or error


def _is_job(transaction: object) -> bool:
    codec = sys.modules.get("ergon_framework.connector.jobs.codec")
    return codec is not None and isinstance(transaction, codec.JobDelivery)


# -- what is sent ------------------------------------------------------------------------------


def _new_scope(unit: UnitOfWork | None) -> Scope:
    """A scope with what the program has set, without what other units have left there."""
    scope = sentry_sdk.get_isolation_scope().fork()
    scope.clear_breadcrumbs()
    if unit is not None:
        for name, value in _tags(unit).items():
            scope.set_tag(name, value)
    return scope


def _use(scope: Scope) -> None:
    """Make a scope current in the context of one attempt, which no other code shares."""
    Scope.set_current_scope(Scope.get_current_scope().fork())
    Scope.set_isolation_scope(scope)


def _tags(unit: UnitOfWork) -> dict[str, str]:
    tags = {"ergon.kind": unit.kind, "ergon.name": unit.name, "ergon.id": unit.id}
    if unit.correlation_id:
        tags["ergon.correlation_id"] = unit.correlation_id
    return tags


def _leave_breadcrumb(scope: Scope, what: str, failure: Failure) -> None:
    scope.add_breadcrumb(
        category="ergon",
        level="warning",
        message=f"{what} failed: {_safe(failure.message) or failure.code}",
        data={"kind": failure.kind.value, "code": failure.code},
    )


def _capture(
    scope: Scope,
    unit: UnitOfWork,
    failure: Failure,
    error: BaseException | None,
    trace: str | None = None,
    level: str | None = None,
) -> None:
    event: Any
    event, hint = _of_error(error) if error is not None else (_of_text(failure, trace), {})
    is_expected = failure.kind is Kind.REJECTED
    event["level"] = level or ("warning" if is_expected else "error")
    # Without ids and messages: with them, each dead letter would be an issue of its own.
    event["fingerprint"] = ["ergon", unit.kind, unit.name, failure.code]
    event["transaction"] = f"{unit.kind} {unit.name}"
    event["tags"] = {**_tags(unit), "ergon.code": failure.code}
    event["contexts"] = {
        "ergon": {
            "kind": unit.kind,
            "name": unit.name,
            "id": unit.id,
            "attempts": unit.attempt,
            "failure": failure.kind.value,
            "code": failure.code,
        }
    }
    with use_isolation_scope(scope):
        sentry_sdk.capture_event(event, hint)


def _of_error(error: BaseException) -> tuple[Any, dict[str, Any]]:
    """An event with the stack of an exception, without its variables."""
    options = {
        **sentry_sdk.get_client().options,
        "include_local_variables": False,
        "add_full_stack": False,
    }
    mechanism = {"type": ErgonIntegration.identifier, "handled": False}
    event: Any
    event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
    for value in event["exception"]["values"]:
        value["value"] = _safe(str(value.get("value") or ""))
    return event, hint


def _of_text(failure: Failure, trace: str | None) -> dict[str, Any]:
    """An event for a failure in another process, with the stack that its report has as text."""
    values = [*_stacks(trace or "")] or [{}]
    values[-1] |= {"type": failure.code, "value": _safe(failure.message)}
    values[-1]["mechanism"] = {"type": ErgonIntegration.identifier, "handled": False}
    return {"exception": {"values": values}}


def _stacks(trace: str) -> Iterator[dict[str, Any]]:
    """The exceptions of a traceback as an executor writes it, causes first."""
    for part in trace.split(f"{_LED_TO}\n"):
        lines = part.splitlines()
        frames = [*_frames(lines)]
        if frames:
            yield {"type": lines[-1].strip(), "value": "", "stacktrace": {"frames": frames}}


def _frames(lines: list[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        found = _FRAME.fullmatch(line)
        if found is None:
            continue
        file, below = found["file"], lines[number + 1] if number + 1 < len(lines) else ""
        frame = {"filename": PurePath(file).name, "abs_path": file, "function": found["name"]}
        source = {"context_line": below.strip()} if below.startswith("    ") else {}
        yield {**frame, "lineno": int(found["line"]), **source}


def _safe(text: str) -> str:
    """A message without secrets, and without the input that a validator quotes."""
    return redacted_text(_QUOTED.sub("input_value=…, input_type=", text))[:MAX_TEXT]


def _reviewed(event: Any, hint: Mapping[str, Any]) -> Any:
    """Clean an event of any origin before it is sent; None drops it.

    Log records of Ergon that report an end are dropped, because the end is an event of its own.
    What was captured inside a unit is sent without the variables of its stack, which may hold
    payloads, and without the arguments of the command.
    """
    chosen = _chosen()
    if chosen is None:
        return event
    record = hint.get("log_record")
    is_ours = record is not None and record.name in _LOGGERS
    # Sentry's logging integration makes an event of each error record, including Ergon's.
    if is_ours and getattr(record, "ending", None) in _FAILED:
        return None
    if "ergon.kind" not in (event.get("tags") or {}):
        return event
    # The arguments of a command may be those of a job.
    (event.get("extra") or {}).pop("sys.argv", None)
    if not chosen.local_variables:
        __tracebackhide__ = True  # It is not part of the stack that is reported.
        if sentry_sdk.get_client().options["attach_stacktrace"] and not _STACKS & event.keys():
            # Sentry would attach the stack after this, with its variables.
            stack = current_stacktrace(include_local_variables=False)
            event["threads"] = {"values": [{"stacktrace": stack, "current": True}]}
        _remove_variables(event)
    return event


def _remove_variables(event: Any) -> None:
    """Remove the variables from every stack in an event, wherever it is."""
    left, seen = [event], set()
    while left:
        node = left.pop()
        if type(node).__name__ == "AnnotatedValue":  # Sentry has shortened this value.
            node = node.value
        if id(node) in seen:  # What the user's code attaches may contain itself.
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if isinstance(node.get("frames"), list | tuple):
                for frame in node["frames"]:
                    if isinstance(frame, dict):
                        frame.pop("vars", None)
            left.extend(node.values())
        elif isinstance(node, list | tuple):
            left.extend(node)
