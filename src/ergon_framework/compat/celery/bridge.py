"""``from_celery``: the tasks of a Celery application as jobs, while a team moves.

Everything that sends a task, ``delay``, ``apply_async``, signatures and beat, goes through the
application's ``send_task``. That one method is replaced, by one that sends a call to Ergon or to
Celery's broker as the routes say. Running a task leaves Celery's own code in charge of its request,
its retries and its backoff: a retry is a call of ``send_task`` with the id of the running job, and
becomes another attempt of that job.
"""

from __future__ import annotations

import fnmatch
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from ergon_framework.compat.celery.arguments import (
    check_types,
    read_result,
    refuse_repeated_names,
    unwritable_argument,
)
from ergon_framework.compat.celery.exceptions import CanvasError, UnsupportedOptionError
from ergon_framework.compat.celery.execution import (
    RUNNING_DELIVERY,
    CeleryDelivery,
    RunListener,
    TaskHandler,
)
from ergon_framework.compat.celery.options import (
    OF_JOBS,
    TaskPolicy,
    job_options,
    option_problems,
    policy_of,
    refuse_canvas,
    refuse_changes,
    unkept,
)
from ergon_framework.compat.celery.result import JobResult, result_class
from ergon_framework.compat.celery.target import DEFAULT_QUEUE, CallTarget, ErgonApp
from ergon_framework.errors import (
    JobNotFoundError,
    MissingExtraError,
    WiringError,
    describe,
)
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient

logger = logging.getLogger("ergon.compat.celery")

Side: TypeAlias = Literal["ergon", "celery"]
Routes: TypeAlias = Side | Mapping[str, Side]
"""Which side gets the calls: one side for all tasks, or patterns of names, of which the first that
matches counts.
"""

BUILT_IN = "celery."
"""Tasks of Celery itself, which stay with Celery."""
MAPS = frozenset({"celery.map", "celery.starmap", "celery.chunks"})
"""Tasks whose message holds calls of another task, which Celery's worker makes."""


def from_celery(
    celery_app: Any,
    app: ErgonApp | None = None,
    *,
    registry: Registry | None = None,
    client: JobClient | Callable[[], JobClient] | None = None,
    route: Routes = "celery",
    store_results: bool = False,
    ignore: Sequence[str] = (),
) -> CeleryBridge:
    """Make all tasks of a Celery application handlers of an App, and route calls of them.

    An executor imports the modules that Celery's worker would import, before its first job.
    By default calls go on to Celery, and only jobs that are there already run: name in ``route``
    the tasks whose calls are to become jobs. With ``store_results``, results are written to
    Celery's result backend too, where ``AsyncResult(id)`` finds them. ``ignore=["rate_limit"]``
    accepts that a rate limit is not kept.
    """
    try:
        import celery  # noqa: F401 - only to say what is missing
    except ImportError as error:
        raise MissingExtraError(
            "from_celery needs the package celery",
            remedy='pip install "ergon-framework[celery]"',
        ) from error
    target = CallTarget(app, registry=registry, client=client, ignore=ignore)
    bridge = CeleryBridge(celery_app, target, route, store_results=store_results)
    # Later: a program that calls tasks needs none of their modules, and may be in the middle of
    # importing them, or of Django's start.
    target.registry.on_startup(bridge.load_tasks)
    bridge.attach()
    return bridge


class CeleryBridge:
    """A Celery application whose tasks also run as jobs."""

    def __init__(
        self, celery_app: Any, target: CallTarget, route: Routes, *, store_results: bool = False
    ) -> None:
        self.celery_app = celery_app
        self.target = target
        self._route = _checked(route)
        self._store_results = store_results
        self._send: Callable[..., Any] = celery_app.send_task
        self._result_class: Any = celery_app.AsyncResult
        self._warned: set[str] = set()
        self._revoke: Callable[..., Any] | None = None

    @property
    def registry(self) -> Registry:
        """The handlers of the tasks: ``--app module:bridge`` serves them."""
        return self.target.registry

    @property
    def tasks(self) -> dict[str, Any]:
        """Celery's tasks by name, without those of Celery itself."""
        found = self.celery_app.tasks.items()
        return {name: task for name, task in sorted(found) if not name.startswith(BUILT_IN)}

    def side_of(self, name: str) -> Side:
        """Which side gets the calls of a task."""
        if name.startswith(BUILT_IN):
            return "celery"
        matching = (side for each, side in self._route.items() if fnmatch.fnmatchcase(name, each))
        return next(matching, "celery")

    # ---- running tasks ----

    def load_tasks(self) -> None:
        """Import the modules of tasks that Celery's worker would import, and add their handlers.

        This starts Django where Celery would.
        """
        self.celery_app.loader.import_default_modules()
        for name, task in self.tasks.items():
            if name in self.registry:
                continue
            problems = option_problems(task)
            # Celery accepts such a value until it needs it.
            if problems and self.side_of(name) == "celery":
                logger.warning("the task %r does not run as a job: %s", name, problems[0])
                continue
            self.registry.add(self._handler(task), name)

    def _handler(self, task: Any) -> TaskHandler:
        from celery.exceptions import SoftTimeLimitExceeded
        from kombu.utils.json import object_hook

        return TaskHandler(
            task,
            listener=CelerySignals(self._store_results),
            encode=_encoded_result,
            # Only a parser calls kombu's hook, which knows the types that users have registered
            # there.
            decode=lambda value: json.loads(json.dumps(value), object_hook=object_hook),
            soft_limit=self.policy_of(task).soft_time_limit,
            soft_error=SoftTimeLimitExceeded,
        )

    def policy_of(self, task: Any) -> TaskPolicy:
        """What a task declares. A task without time limits gets those of the configuration."""
        found, conf = policy_of(task), self.celery_app.conf
        return replace(
            found,
            time_limit=found.time_limit or conf.task_time_limit,
            soft_time_limit=found.soft_time_limit or conf.task_soft_time_limit,
        )

    # ---- sending tasks ----

    def attach(self) -> None:
        """Route calls from now on, and let ``AsyncResult`` and ``control`` of the application find
        jobs.
        """
        self.celery_app.send_task = self.send_task
        self.celery_app.AsyncResult = result_class(self._result_class, self._find_job)
        # Attached a second time, our own method must not be taken for that of Celery.
        self._revoke = self._revoke or self.celery_app.control.revoke
        self.celery_app.control.revoke = self.revoke

    def detach(self) -> None:
        """Send all calls to Celery again, as before."""
        self.celery_app.send_task = self._send
        self.celery_app.AsyncResult = self._result_class
        self.celery_app.control.revoke = self._revoke

    def revoke(
        self,
        task_id: str | Sequence[str],
        destination: Any = None,
        terminate: bool = False,
        signal: str | None = "SIGTERM",
        **options: Any,
    ) -> Any:
        """Stand in for ``app.control.revoke``: cancel the jobs, and pass other ids on to Celery.

        ``celery.result.AsyncResult(id).revoke()`` ends up here, too.
        """
        ids = [task_id] if isinstance(task_id, str) else [*task_id]
        jobs = {each: found for each in ids if (found := self._find_job(str(each))) is not None}
        for found in jobs.values():
            found.revoke(terminate=terminate)
        others = [each for each in ids if each not in jobs]
        if not others or self._revoke is None:
            return None
        # Without a job among them, Celery gets exactly what the caller gave: an id or a list of
        # ids.
        whole = task_id if len(others) == len(ids) else others
        return self._revoke(whole, destination, terminate, signal, **options)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *positional: Any,
        **options: Any,
    ) -> Any:
        """Called by Celery to send a task: a new job, a message, or a retry of the running job."""
        if positional:  # countdown, eta and so on, in Celery's own order
            bound = inspect.signature(self._send).bind(name, args, kwargs, *positional)
            options |= {each: bound.arguments[each] for each in [*bound.arguments][3:]}
        delivery = RUNNING_DELIVERY.get()
        # Before the routes: a running job is retried as a job, even if its task now goes to Celery.
        if delivery is not None and options.get("task_id") == delivery.job_id:
            return self._again(delivery, name, args, kwargs, options)
        # A message that is retried by Celery's worker stays with Celery.
        if not options.get("retries"):
            if delivery is not None:
                _refuse_replacement(delivery, options)
            if self.side_of(name) == "ergon":
                return self._send_job(name, args, kwargs, options)
            self._refuse_map(name, args, kwargs)
        message = {key: value for key, value in options.items() if key not in OF_JOBS}
        sent = self._send(name, args, kwargs, **message)
        # The job store need not be asked about this id. A result_cls of the call's own lacks the
        # field.
        if hasattr(sent, "is_message"):
            sent.is_message = True
        return sent

    def _refuse_map(
        self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
    ) -> None:
        """Refuse a message of Celery that holds many calls of a task which is routed to Ergon."""
        if name not in MAPS:
            return
        mapped = (kwargs or {}).get("task") or next(iter(args or ()), None)
        of = str(mapped["task"] if isinstance(mapped, Mapping) else getattr(mapped, "name", mapped))
        if self.side_of(of) == "ergon":
            raise CanvasError(
                f"map, starmap and chunks put many calls of {of!r} into one message to Celery, and"
                " its calls are routed to Ergon, which runs single calls",
                remedy="call delay() for each item: for each in items: task.delay(each); or leave"
                f' the task with Celery: route={{"{of}": "celery"}}',
                details={"task": of},
            )

    def _find_job(self, task_id: str) -> JobResult | None:
        """The result of a job, if there is one with this id."""
        # An application that sends nothing to Ergon must not depend on Ergon's job store for
        # results.
        if "ergon" not in self._route.values():
            return None
        try:
            self.target.client.find(task_id)
        except JobNotFoundError:
            return None
        return self.target.result(task_id)

    def _send_job(
        self,
        name: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> JobResult:
        refuse_canvas(name, options)
        task = options.get("task_type") or self._known(name)
        policy = self._default_policy(name) if task is None else self.policy_of(task)
        # By name, because Celery adds what it declares.
        if task is not None and "task_type" not in options:
            declared = ("queue", "priority", "expires", "serializer")
            own = {each: getattr(task, each, None) for each in declared}
            options = {**{key: value for key, value in own.items() if value is not None}, **options}
        # Once for each task, because this runs at every call.
        if task is not None and name not in self._warned:
            self._warned.add(name)
            for each in unkept(task):
                logger.warning("the task %r runs as a job: %s", name, each)
        made = job_options(
            policy,
            self._routed(name, args, kwargs, options, task),
            now=datetime.now(UTC),
            is_smaller_first=self._is_smaller_first,
        )
        return self.target.send(policy, *_encoded(name, args or (), kwargs or {}), made)

    def _again(
        self,
        delivery: CeleryDelivery,
        name: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> JobResult:
        """Make a retry of the running job. Celery raises ``Retry`` when this returns."""
        if name != delivery.task or options.get("retries") != delivery.retries + 1:
            raise _replaced(delivery, repr(name))
        refuse_canvas(name, options)
        task = self.celery_app.tasks[name]
        refuse_changes(name, self._changed(task, delivery, options))
        delivery.ask_for_retry(
            args,
            kwargs,
            countdown=options.get("countdown"),
            eta=options.get("eta"),
            max_attempts=self.policy_of(task).max_attempts,
        )
        return self.target.result(delivery.job_id)

    def _changed(
        self, task: Any, delivery: CeleryDelivery, options: Mapping[str, Any]
    ) -> Iterator[str]:
        """The options of a retry that differ from those of its job."""
        queue = options.get("queue")
        known = {delivery.queue, getattr(task, "queue", None), None}
        # _routed replaced Celery's default queue by this one; a retry sends the name of the default
        # queue along.
        if delivery.queue == DEFAULT_QUEUE:
            known.add(self.celery_app.conf.task_default_queue)
        if getattr(queue, "name", queue) not in known:
            yield "queue"
        if options.get("priority") not in (None, task.priority):
            yield "priority"
        policy = self.policy_of(task)
        for limit in ("time_limit", "soft_time_limit"):
            if options.get(limit) not in (None, getattr(policy, limit)):
                yield limit
        for each in ("expires", "headers", "exchange", "routing_key", *OF_JOBS):
            if options.get(each) not in (None, {}, getattr(task, each, None)):
                yield each

    def _routed(
        self,
        name: str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        task: Any,
    ) -> dict[str, Any]:
        """The options with the queue that Celery's routes give. Celery's default queue becomes
        Ergon's.
        """
        given = {key: value for key, value in options.items() if value is not None}
        if "queue" not in given and given.keys() & {"exchange", "routing_key"}:
            # job_options refuses it, because only the broker knows where such options lead.
            return given
        asked = given.get("queue", DEFAULT_QUEUE)
        if not asked or not isinstance(getattr(asked, "name", asked), str):
            return given  # Refused there as well, because Celery's router would fail on it.
        chosen = self.celery_app.amqp.router.route(dict(given), name, args, kwargs, task)
        queue = chosen.pop("queue", None)
        name_of_queue = str(getattr(queue, "name", queue))
        if name_of_queue != self.celery_app.conf.task_default_queue:
            chosen["queue"] = name_of_queue
        left_out = ("exchange", "routing_key")
        return {key: value for key, value in chosen.items() if key not in left_out}

    def _known(self, name: str) -> Any:
        """The task of a name, if it has been imported in this process."""
        # Not ``tasks``, which finalizes all of them; only Celery's worker needs that.
        return self.celery_app._tasks.get(name)  # noqa: SLF001 - its send_task looks there as well

    def _default_policy(self, name: str) -> TaskPolicy:
        """What is assumed of a task of which this process knows only the name."""
        conf = self.celery_app.conf
        # It counts as bound, and so may ask for more retries than it is known to declare.
        return TaskPolicy(
            name,
            acks_late=bool(conf.task_acks_late),
            time_limit=conf.task_time_limit,
            rate_limit=conf.task_default_rate_limit,
        )

    @property
    def _is_smaller_first(self) -> bool:
        """Whether priority 0 is the highest for the broker, as for Redis."""
        return str(self.celery_app.conf.broker_url or "").startswith(("redis", "sentinel"))


class CelerySignals(RunListener):
    """Sends Celery's signals of a task, and stores its results where Celery's clients look for
    them.
    """

    def __init__(self, store_results: bool) -> None:
        self._store_results = store_results

    def started(self, task: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Send ``task_prerun``."""
        from celery import signals

        signals.task_prerun.send(sender=task, task_id=task_id, task=task, args=args, kwargs=kwargs)

    def ended(self, task: Any, task_id: str, state: str, value: Any, einfo: Any) -> None:
        """Store the result, then send the signal of the state."""
        from celery import signals

        # Before the signal, as Celery does, because a receiver may ask for the result.
        if self._store_results:
            self._store(task, task_id, state, value, einfo)
        request = task.request
        if state == "SUCCESS":
            signals.task_success.send(sender=task, result=value)
        elif state == "RETRY":
            signals.task_retry.send(sender=task, request=request, reason=value, einfo=einfo)
        elif state == "FAILURE":
            signals.task_failure.send(
                sender=task,
                task_id=task_id,
                exception=value,
                args=request.args,
                kwargs=request.kwargs,
                traceback=getattr(value, "__traceback__", None),
                einfo=einfo,
            )

    def returned(self, task: Any, task_id: str, state: str, value: Any) -> None:
        """Send ``task_postrun``."""
        from celery import signals

        request = task.request
        signals.task_postrun.send(
            sender=task,
            task_id=task_id,
            task=task,
            args=request.args,
            kwargs=request.kwargs,
            retval=value,
            state=state,
        )

    def error_info(self, error: BaseException) -> Any:
        """Celery's own record of the error that is being handled."""
        from billiard.einfo import ExceptionInfo

        return ExceptionInfo((type(error), error, error.__traceback__))

    def _store(self, task: Any, task_id: str, state: str, value: Any, einfo: Any) -> None:
        """Write the result to Celery's backend. If that cannot be reached, the task is done all the
        same.
        """
        trace = getattr(einfo, "traceback", None)
        try:
            if state == "SUCCESS" and not task.ignore_result:
                task.backend.mark_as_done(task_id, value, request=task.request)
            elif state == "RETRY":
                cause = getattr(value, "exc", None) or value
                task.backend.mark_as_retry(task_id, cause, trace, request=task.request)
            elif state == "FAILURE":
                task.backend.mark_as_failure(task_id, value, trace, request=task.request)
        except Exception as error:
            logger.warning("the result of %s was not stored: %s", task.name, describe(error))


def _refuse_replacement(delivery: CeleryDelivery, options: Mapping[str, Any]) -> None:
    """Refuse ``self.replace()`` by a canvas, in which one task has the id of the running job."""
    members = [options.get("chord"), *(options.get("chain") or ())]
    ids = [each["options"].get("task_id") for each in members if isinstance(each, Mapping)]
    if delivery.job_id in ids:
        raise _replaced(delivery, "a chain, group or chord")


def _replaced(delivery: CeleryDelivery, by: str) -> CanvasError:
    return CanvasError(
        f"the task {delivery.task!r} is replaced by {by} while it runs",
        remedy="call the other task with delay(), and return",
        details={"task": delivery.task},
    )


def _encoded(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Arguments as Celery's JSON serializer writes them, including types of the user."""
    check_types(name, args, kwargs)
    try:
        text = _written([list(args), dict(kwargs)])
        sent: list[Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise unwritable_argument(name, error) from error
    refuse_repeated_names(name, text)
    return sent[0], sent[1]


def _encoded_result(value: Any) -> Any:
    try:
        return read_result(value, _written(value))
    except (TypeError, ValueError, RecursionError):
        return value  # The executor that writes the outcome says why it cannot be written.


def _written(value: Any) -> str:
    from kombu.utils.json import JSONEncoder

    return json.dumps(value, cls=JSONEncoder)


def _checked(route: Routes) -> dict[str, Side]:
    routes: dict[str, Side] = {"*": route} if isinstance(route, str) else dict(route)
    for pattern, side in routes.items():
        if side not in ("ergon", "celery"):
            raise WiringError(
                f"the route of {pattern!r} is {side!r}", remedy="write 'ergon' or 'celery'"
            )
    return routes


__all__ = ["CeleryBridge", "UnsupportedOptionError", "from_celery"]
