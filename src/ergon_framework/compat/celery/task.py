"""``Celery``, ``Task`` and ``shared_task`` without Celery: the names that task modules import.

::

    from ergon_framework import App
    from ergon_framework.compat.celery import Celery

    ergon = App()
    app = Celery("shop", ergon=ergon)


    @app.task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True)
    def fetch(self, url): ...

Each task is a handler of ``ergon``, under the name that Celery would give it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast, overload

from ergon_framework.compat.celery.arguments import check_types, encode
from ergon_framework.compat.celery.exceptions import (
    CanvasError,
    MaxRetriesExceededError,
    SoftTimeLimitExceeded,
    TaskRetry,
    UnsupportedOptionError,
    is_celery,
    missing_name,
)
from ergon_framework.compat.celery.execution import RUNNING_DELIVERY, TaskHandler
from ergon_framework.compat.celery.options import (
    declared_tags,
    job_options,
    policy_of,
    refuse_changes,
)
from ergon_framework.compat.celery.result import JobResult
from ergon_framework.compat.celery.target import CallTarget, ErgonApp
from ergon_framework.core.option_values import shown
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import WiringError
from ergon_framework.executor import Registry
from ergon_framework.jobs.client import JobClient

logger = logging.getLogger("ergon.compat.celery")

_UNSUPPORTED = {
    "exchange": "name a queue: jobs have no exchanges",
    "pydantic": "annotate handlers of an App with models instead",
    "routing_key": "name a queue: jobs have no routing keys",
}
_NEXT = "call the next task with delay() at the end of this one"
_ON_COMMIT = "write transaction.on_commit(partial(task.delay, …)) of Django"
_TASK_NAMES = {
    "add_to_chord": _NEXT,
    "apply_async_on_commit": _ON_COMMIT,
    "backend": "ask the result that delay() returned: jobs keep their results themselves",
    "delay_on_commit": _ON_COMMIT,
    "send_event": "log it, or see ergon tail: jobs have no events of Celery",
    "signature_from_request": "call apply_async() with the arguments that you have",
    "subtask_from_request": "call apply_async() with the arguments that you have",
}
"""Attributes that tasks of Celery have and these do not, with what to do instead."""
_SETTINGS = "leave it out: what jobs need is said in the decorators, by App and in ergon.toml"
_SCHEDULES = "declare it with @app.schedule of the App, or in ergon.toml under [schedules]"
_APP_NAMES = {
    **dict.fromkeys(
        ("add_defaults", "conf", "config_from_envvar", "config_from_object"), _SETTINGS
    ),
    **dict.fromkeys(("add_periodic_task", "on_after_configure", "on_after_finalize"), _SCHEDULES),
    "control": "cancel a job with result.revoke() or ergon jobs cancel; see ergon jobs workers",
    "start": "run a worker: ergon worker, or run() of the App",
    "worker_main": "run a worker: ergon worker, or run() of the App",
}
"""The same for applications."""


class TaskRequest:
    """``self.request``: the job that a task runs in, or a direct call."""

    id: str | None = None
    task: str | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    retries: int = 0
    called_directly: bool = True
    is_eager: bool = False
    hostname: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    correlation_id: str | None = None
    delivery_info: Mapping[str, Any] = {}
    eta: None = None
    expires: None = None
    headers: None = None
    group: None = None
    chord: None = None

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def get(self, name: str, default: Any = None) -> Any:
        """A field by name."""
        return getattr(self, name, default)


# Not in the task, because a base class of the user may have a constructor that does not call
# Task's.
_REQUESTS: ContextVar[Mapping[int, tuple[TaskRequest, ...]]] = ContextVar("requests", default={})  # noqa: B039 - never changed in place


class Task:
    """A task: subclass it for ``base=``, or let ``@app.task`` and ``@shared_task`` make one."""

    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[Exception], ...] = ()
    dont_autoretry_for: tuple[type[Exception], ...] = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    rate_limit: str | float | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    acks_late: bool = False
    ignore_result: bool = False
    queue: str | None = None
    priority: int | None = None
    expires: float | datetime | None = None
    serializer: str | None = None
    tags: Iterable[str] | None = None
    typing: bool = True
    app: Celery | None = None
    MaxRetriesExceededError = MaxRetriesExceededError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work; overridden by every task."""
        raise NotImplementedError(f"the task {self.name!r} has no run()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task's function here and now."""
        return self.run(*args, **kwargs)

    if not TYPE_CHECKING:  # type checkers are to say what is not there

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_name(f"the task {self.name!r}", name, _TASK_NAMES)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    # ---- calling it later ----

    def delay(self, *args: Any, **kwargs: Any) -> JobResult:
        """Have the task run as a job."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> JobResult:
        """Have the task run as a job, with options of this call."""
        given, named = args or (), kwargs or {}
        check_types(self.name, given, named)
        # As Celery does: a wrong call fails where it is made, and not in a worker.
        if self.typing:
            inspect.signature(self.run).bind(*given, **named)
        policy = policy_of(self)
        own = {key: getattr(self, key) for key in ("queue", "priority", "expires", "serializer")}
        call = {"task_id": task_id, "link": link, "link_error": link_error, **options}
        made = job_options(policy, {**own, **call}, now=datetime.now(UTC))
        return self._app.target.send(policy, *encode(self.name, given, named), made)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Refused: call the task itself, or enqueue it and run a worker in burst mode."""
        raise UnsupportedOptionError(
            f"the task {self.name!r} cannot be applied eagerly",
            remedy="call it as a function; or delay() it and run app.run(burst=True) in a test",
        )

    def AsyncResult(self, task_id: str) -> JobResult:  # noqa: N802 - Celery's name
        """The result of a job of this task."""
        return self._app.target.result(task_id)

    def s(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: chains, groups and chords are made of signatures."""
        raise CanvasError(
            f"the task {self.name!r} has no signature: Ergon has no chains, groups and chords",
            remedy=_NEXT,
            details={"task": self.name},
        )

    si = signature = subtask = replace = s

    def chunks(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: one message with many calls, of which Ergon makes many jobs."""
        raise CanvasError(
            f"the task {self.name!r} has no map, starmap and chunks: a job is one call",
            remedy="call delay() for each item: for each in items: task.delay(each)",
            details={"task": self.name},
        )

    map = starmap = chunks

    # ---- within a run ----

    @property
    def request(self) -> TaskRequest:
        """The job that the task runs in; one that is ``called_directly`` outside of a job."""
        pushed = _REQUESTS.get().get(id(self))
        return pushed[-1] if pushed else TaskRequest()

    def push_request(self, **fields: Any) -> None:
        """Make these the fields of :attr:`request`."""
        pushed = _REQUESTS.get()
        stack = (*pushed.get(id(self), ()), TaskRequest(**fields))
        _REQUESTS.set({**pushed, id(self): stack})

    def pop_request(self) -> None:
        """Forget the request that was pushed last."""
        pushed = _REQUESTS.get()
        _REQUESTS.set({**pushed, id(self): pushed[id(self)][:-1]})

    def retry(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | str | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> TaskRetry:
        """Raise :class:`TaskRetry`, so that the job is run again after ``countdown``, or at
        ``eta``.

        After ``max_retries`` it raises ``exc`` instead, or MaxRetriesExceededError.
        """
        delivery = RUNNING_DELIVERY.get()
        # As Celery does for a task that is called like a function: there is no job to run again.
        if delivery is None or self.request.called_directly:
            raise exc or TaskRetry("Task can be retried")
        refuse_changes(self.name, (key for key, value in options.items() if value is not None))
        most = self.max_retries if max_retries is None else max_retries
        if most is not None and delivery.attempt > most:
            text = f"Can't retry {self.name}[{delivery.job_id}]"
            raise exc or self.MaxRetriesExceededError(text)
        if eta is None and countdown is None:
            countdown = self.default_retry_delay
        attempts = policy_of(self).max_attempts
        delivery.ask_for_retry(args, kwargs, countdown=countdown, eta=eta, max_attempts=attempts)
        asked = TaskRetry(exc=exc, when=eta_or(eta, countdown))
        if throw:
            raise asked
        return asked

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **_: Any
    ) -> None:
        """Log the state. A job has no states chosen by its task."""
        logger.warning("%s: state %s is not kept; jobs have none of their own", self.name, state)

    # ---- hooks ----

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Run before the task."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Run after the task has returned."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the task has asked for another attempt."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Run after the task has failed."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Run last."""

    @property
    def _app(self) -> Celery:
        found = self.app or SHARED.current_app
        if found is None:
            raise WiringError(
                f"the task {self.name!r} belongs to no application",
                remedy='make one before it is called: Celery("shop", ergon=App())',
            )
        return found


def eta_or(eta: datetime | str | None, countdown: float | None) -> float | datetime | None:
    """When a retry is due, as ``Retry.when`` holds it."""
    return countdown if eta is None else cast("datetime", eta)


def _types(errors: Any) -> tuple[type[Exception], ...]:
    """The exceptions of an option, which may be one exception or a list."""
    return (errors,) if isinstance(errors, type) else tuple(errors)


class AutoretryTask:
    """A task whose errors in ``autoretry_for`` become retries while it runs in a job."""

    def __init__(self, task: Task, dice: Callable[[], float] = random.random) -> None:
        self._task = task
        self._dice = dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task. Raises ``Retry`` for an error after which it is to be run again."""
        task = self._task
        try:
            return task(*args, **kwargs)
        except _types(task.autoretry_for) as error:
            # autoretry_for=(Exception,) also catches Ignore, Reject and Retry, which are no
            # failures.
            is_final = isinstance(error, _types(task.dont_autoretry_for))
            if is_final or any(is_celery(error, each) for each in ("Ignore", "Reject", "Retry")):
                raise
            asked = dict(task.retry_kwargs)
            if task.retry_backoff:
                asked["countdown"] = self._countdown(task.request.retries)
            # retry() raises by itself, unless retry_kwargs has throw=False.
            raise task.retry(exc=error, **asked) from error

    def _countdown(self, retries: int) -> float:
        low = 0.0 if self._task.retry_jitter else 1.0
        factor, cap = float(self._task.retry_backoff), float(self._task.retry_backoff_max)
        if cap <= 0.0:  # Backoff takes this for no cap.
            return 0.0
        # At least one second: Celery raises a smaller factor to 1 as well, and True is 1.
        return Backoff(max(1.0, factor), 2.0, cap, low=low, high=1.0).delay(retries, self._dice())


class Celery:
    """An application: tasks, and the App (or registry and client) that their jobs belong to.

    Tasks of ``shared_task`` belong to every application. Their calls go to the application that was
    made last, as with Celery.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        ergon: ErgonApp | None = None,
        registry: Registry | None = None,
        client: JobClient | Callable[[], JobClient] | None = None,
        include: Iterable[str] = (),
        ignore: Sequence[str] = (),
        **options: Any,
    ) -> None:
        if options:
            raise UnsupportedOptionError(
                f"Celery({', '.join(f'{each}=…' for each in options)}) has no meaning here: jobs"
                " need no broker and no result backend",
                remedy="leave it out; the store is that of the App: ergon=App(url)",
            )
        self.main = main
        self.target = CallTarget(ergon, registry=registry, client=client, ignore=ignore)
        self.tasks: dict[str, Task] = {}
        SHARED.add_app(self)
        for name in include:
            importlib.import_module(name)

    if not TYPE_CHECKING:  # type checkers are to say what is not there

        def __getattr__(self, name: str) -> NoReturn:
            owner = f"the application {self.__dict__.get('main')!r}"
            raise missing_name(owner, name, _APP_NAMES)

    @property
    def registry(self) -> Registry:
        """The handlers of the tasks: ``--app module:app`` serves them."""
        return self.target.registry

    @overload
    def task(self, function: Callable[..., Any], /) -> Task: ...
    @overload
    def task(self, /, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...
    def task(self, /, *args: Any, **options: Any) -> Any:
        """Make a function a task of this application, under the name that Celery gives it."""

        def made(function: Callable[..., Any]) -> Task:
            task = task_of(function, options)
            task.app = self
            return self.register_task(task)

        return made(args[0]) if args and callable(args[0]) else made

    def register_task(self, task: Task | type[Task]) -> Task:
        """Add a task; a class is instantiated."""
        task = task() if isinstance(task, type) else task
        if not task.name:
            task.name = f"{type(task).__module__}.{type(task).__name__}"
        # Now, at the import; later it would be an error of the first call.
        policy_of(task)  # Raises an error that says what is wrong with its options.
        if task.tags is not None and declared_tags(task) is None:
            raise UnsupportedOptionError(
                f"the task {task.name!r} is declared with tags={shown(task.tags)}",
                remedy='give a list of texts, for example tags=["billing"]',
            )
        # Only around the handler: a task that is called like a function raises its own errors.
        runs: Any = AutoretryTask(task) if task.autoretry_for else task
        handler = TaskHandler(
            runs, soft_limit=task.soft_time_limit, soft_error=SoftTimeLimitExceeded
        )
        self.registry.add(handler, task.name)
        self.tasks[task.name] = task
        return task

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> JobResult:
        """Call a task of this application by name."""
        task = self.tasks.get(name)
        if task is None:
            raise WiringError(
                f"there is no task {name!r}", remedy="import its module, or correct the name"
            )
        return task.apply_async(args, kwargs, **options)

    def autodiscover_tasks(self, packages: Iterable[str], related_name: str = "tasks") -> None:
        """Import ``tasks`` of each package that has it."""
        for package in packages:
            name = f"{package}.{related_name}"
            importlib.import_module(package)
            # A package may have no tasks, but one whose tasks cannot be imported is an error.
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)

    def AsyncResult(self, task_id: str) -> JobResult:  # noqa: N802 - Celery's name
        """The result of a job."""
        return self.target.result(task_id)


class SharedTasks:
    """The tasks of ``shared_task`` and the applications that have them, whichever were
    made first.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: list[Task] = []
        self._apps: list[weakref.ref[Celery]] = []

    @property
    def current_app(self) -> Celery | None:
        """The application that was made last and still exists."""
        living = (app for each in reversed(self._apps) if (app := each()) is not None)
        return next(living, None)

    def add_app(self, app: Celery) -> None:
        """Give an application all tasks, and those that are added later."""
        with self._lock:
            # Weak references: this list lives as long as the process, and a test makes an
            # application for each case.
            self._apps = [each for each in self._apps if each() is not None] + [weakref.ref(app)]
            for task in self._tasks:
                app.register_task(task)

    def add_task(self, task: Task) -> None:
        """Give a task to all applications, and to those that are made later."""
        with self._lock:
            self._tasks.append(task)
            for each in self._apps:
                app = each()
                if app is not None:
                    app.register_task(task)


SHARED = SharedTasks()


@overload
def shared_task(function: Callable[..., Any], /) -> Task: ...
@overload
def shared_task(**options: Any) -> Callable[[Callable[..., Any]], Task]: ...
def shared_task(*args: Any, **options: Any) -> Any:
    """Make a function a task of every application, made before or later."""

    def made(function: Callable[..., Any]) -> Task:
        task = task_of(function, options)
        SHARED.add_task(task)
        return task

    return made(args[0]) if args and callable(args[0]) else made


def task_of(function: Callable[..., Any], options: Mapping[str, Any]) -> Task:
    """A task that calls a function, with these options of the decorator."""
    given = dict(options)
    for name in given.keys() & _UNSUPPORTED.keys():
        raise UnsupportedOptionError(
            f"the task {function.__name__!r} cannot be run by Ergon with {name}",
            remedy=_UNSUPPORTED[name],
        )
    base = given.pop("base", None) or Task
    is_bound = given.pop("bind", False)
    name = given.pop("name", None) or _name_of(function)
    fields: dict[str, Any] = {
        "name": name,
        "run": function if is_bound else staticmethod(function),
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__wrapped__": staticmethod(function),
        **given,
    }
    made: Task = type(function.__name__, (base,), fields)()
    return made


def _name_of(function: Callable[..., Any]) -> str:
    """``module.function``. A script is named by its file, as its executors import it."""
    module = function.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    return f"{module}.{function.__name__}"


def refused_canvas(*_: Any, **__: Any) -> NoReturn:
    """Stands for ``chain``, ``group``, ``chord`` and ``signature``: they can be imported, and
    calling them is refused.
    """
    raise CanvasError("Ergon runs single calls: it has no chains, groups and chords", remedy=_NEXT)
