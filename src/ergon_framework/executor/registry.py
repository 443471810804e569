"""The handlers of an executor, by name, and what runs before the first and after the last."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

import msgspec

from ergon_framework.errors import HookError, JobError, WiringError
from ergon_framework.executor.binding import BatchBinding, Binding, InvalidArgumentsError
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.colour import is_async_generator, is_coroutine, is_generator
from ergon_framework.ports.round_trip import model_as_json, path_text
from ergon_framework.ports.unit_of_work import RUNNING

if TYPE_CHECKING:
    import ergon_framework.ports.job_options as job_fields
    import ergon_framework.ports.lifespan as lifespan_port
    import ergon_framework.ports.middleware as middleware_port
else:
    job_fields = LateModule("ergon_framework.ports.job_options")
    lifespan_port = LateModule("ergon_framework.ports.lifespan")
    middleware_port = LateModule("ergon_framework.ports.middleware")

MAX_BATCH = 1024
"""Jobs in one call: as many as may be in flight to one process."""
LINGER = 0.02
"""Seconds that a batch waits for more jobs, by default."""
Hook = Callable[[], Any]
_F = TypeVar("_F", bound=Callable[..., Any])
_H = TypeVar("_H", bound=Hook)


class HandlerNotFoundError(JobError, LookupError):
    """No handler is registered under this name."""

    code = "handler_not_found"


class BatchResultError(JobError):
    """A batch handler did not answer for each of its jobs."""

    code = "batch_result"


class Handler:
    """A function under its name, and the options of its jobs."""

    __slots__ = (
        "_binding", "_function", "_layers", "_registry",
        "batch", "function", "give_up_on", "heartbeat", "is_async", "linger", "name", "options",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        registry: Registry,
        batch: int = 0,
        linger: float = 0.0,
    ) -> None:
        self.name = name
        self._function = self.function = function
        self.options = options
        self.batch = batch
        """How many jobs one call takes at most; 0 for a handler of single jobs."""
        self.linger = linger
        self.heartbeat: float | None = None
        """Seconds of silence after which a worker ends an attempt; None: it need not report."""
        self.give_up_on: tuple[type[BaseException], ...] = ()
        self._registry = registry
        self._layers: tuple[middleware_port.Around, ...] | None = None
        self.is_async = is_coroutine(function)
        self._binding: Binding | BatchBinding | None = None
        if batch:  # what is called for a single one
            self.function = self._await_alone if self.is_async else self._call_alone

    @property
    def binding(self) -> Binding | BatchBinding:
        """The handler's signature, read at the first use: types may be defined below it."""
        if self._binding is None:
            kind = BatchBinding if self.batch else Binding
            self._binding = kind(self.name, self._function, self._registry.scope)
        return self._binding

    @property
    def layers(self) -> tuple[middleware_port.Around, ...]:
        """The middleware around the handler, the innermost first, chosen at the first use."""
        if self._layers is None:
            self._layers = self._registry.layers_of(self.name, is_async=self.is_async)
        return self._layers

    def call_together(self, units: list[Any], jobs: Sequence[Any]) -> Any:
        """Call a batch handler: what it returns for all, or an awaitable of that."""
        args, kwargs = cast("BatchBinding", self.binding).together(units, jobs)
        return self._function(*args, **kwargs)

    def batch_result_problem(self, result: Any, count: int) -> str:
        """What is wrong with the result of a batch of so many jobs; empty: nothing."""
        if result is None or (isinstance(result, list | tuple) and len(result) == count):
            return ""
        what = f"{len(result)} results" if isinstance(result, list | tuple) else "no list"
        if hasattr(result, "close") and hasattr(result, "__await__"):
            result.close()
        return (
            f"the batch handler {self.name!r} returned {what} for {count} jobs: it returns None, or"
            " a list with the result of each, in their order, and an exception for one that failed"
        )

    def _call_alone(self, unit: Any) -> Any:
        return self._only(self.call_together([unit], [RUNNING.get()]))

    async def _await_alone(self, unit: Any) -> Any:
        return self._only(await self.call_together([unit], [RUNNING.get()]))

    def _only(self, result: Any) -> Any:
        problem = self.batch_result_problem(result, 1)
        if problem:
            raise BatchResultError(problem)
        value = None if result is None else result[0]
        if isinstance(value, BaseException):
            raise value
        return value


class Registry:
    """Names handlers, with decorators that leave the functions as they are.

    ::

        registry = Registry()


        @registry.handler("resize", attempts=5, timeout=30)
        def resize(path: str, *, width: int = 100) -> str: ...

    Handlers are plain or async functions. Their arguments come from JSON and are turned into the
    annotated types; a parameter annotated :class:`JobContext` receives the job's context. Options
    are those of all jobs of a handler: a client that is given the registry stores them.
    """

    def __init__(
        self,
        *,
        dependencies: lifespan_port.Dependencies | None = None,
        middleware: middleware_port.MiddlewareStack | None = None,
    ) -> None:
        """An application hands in its own ``dependencies`` and ``middleware``, and shares them."""
        self._handlers: dict[str, Handler] = {}
        self._dependencies = dependencies
        self._middleware = middleware
        self._scope: lifespan_port.DependencyScope | None = None
        self.startup_hooks: list[Hook] = []
        self.shutdown_hooks: list[Hook] = []
        self.openings: list[Callable[[], None]] = []
        """What a process opens before it is ready: no job has that in its time."""

    @overload
    def handler(self, name: _F) -> _F: ...
    @overload
    def handler(
        self,
        name: str | None = None,
        *,
        batch: int | None = None,
        linger: float | None = None,
        heartbeat: float | None = None,
        **options: Unpack[job_fields.HandlerOptions],
    ) -> Callable[[_F], _F]: ...
    def handler(self, name: Any = None, **options: Any) -> Any:
        """Register a function, under the given name or under its own; returns it unchanged.

        With ``batch``, the function is called with a list of up to so many jobs' arguments, after
        at most ``linger`` seconds, and answers for each: see :mod:`ergon_framework.executor.batch`.
        With ``heartbeat``, it must call ``job.progress()`` at least every so many seconds: a worker
        ends an attempt that is silent for longer, as a timeout.
        """
        if callable(name):
            return self.add(name)
        return functools.partial(self.add, name=name, **options)

    def add(
        self,
        function: _F,
        name: str | None = None,
        *,
        batch: int | None = None,
        linger: float | None = None,
        heartbeat: float | None = None,
        **options: Unpack[job_fields.HandlerOptions],
    ) -> _F:
        """Register a function; the same as decorating it."""
        if isinstance(function, staticmethod | classmethod) or not callable(function):
            raise HookError(f"{function!r} cannot be called", remedy="register a function")
        if is_generator(function) or is_async_generator(function):
            raise HookError(
                f"the handler {_own_name(function)!r} is a generator", remedy="return one value"
            )
        name = _checked_name(_own_name(function) if name is None else name)
        gathering = _checked_batch(name, batch, linger)
        if name in self._handlers:
            raise WiringError(
                f"there are two handlers named {name!r}",
                remedy="give one of them another name; a function that a decorator returns has that"
                " of yours if the decorator uses functools.wraps",
            )
        handler = Handler(name, function, {}, self, *gathering)
        handler.heartbeat = _checked_heartbeat(name, heartbeat, batch)
        if options:  # the words are imported for them: most executors start without any
            from ergon_framework.ports.job_options import exception_classes, handler_options

            handler.options = handler_options(name, options)
            handler.give_up_on = exception_classes(options.get("give_up_on"))
        self._handlers[name] = handler
        return function

    def remove(self, name: str) -> None:
        """Remove a handler, so that another one may have its name."""
        del self._handlers[name]

    @property
    def dependencies(self) -> lifespan_port.Dependencies:
        """The lifespans, made at the first use: an executor without any starts sooner."""
        if self._dependencies is None:
            from ergon_framework.ports.lifespan import Dependencies

            self._dependencies = Dependencies()
        return self._dependencies

    @property
    def scope(self) -> lifespan_port.DependencyScope | None:
        """What the lifespans have opened in this process; None where there are none."""
        if self._scope is None and self._dependencies is not None:
            from ergon_framework.ports.lifespan import DependencyScope

            self._scope = DependencyScope(self._dependencies)
        return self._scope

    def layers_of(self, name: str, *, is_async: bool) -> tuple[middleware_port.Around, ...]:
        """The middleware around a handler, the innermost first."""
        if self._middleware is None:
            return ()
        from ergon_framework.ports.middleware import HandlerKind

        return self._middleware.around(HandlerKind.JOB, name, is_async=is_async)

    @overload
    def lifespan(self, function: _H, /) -> _H: ...
    @overload
    def lifespan(
        self, function: None = None, /, **options: Unpack[lifespan_port.LifespanOptions]
    ) -> Callable[[_H], _H]: ...
    def lifespan(self, function: Any = None, /, **options: Any) -> Any:
        """Open what handlers need before the first request, and close it after the last.

        The function yields once; what it yields, in each process that runs handlers, is given to
        parameters annotated with its type. A failure before the yield ends the process, and so
        does one that has not come to its yield within ``startup_timeout`` seconds (60), or to its
        end within ``shutdown_timeout`` (10).
        """
        if function is None:
            return functools.partial(self.dependencies.add, **options)
        return self.dependencies.add(function, **options)

    @overload
    def middleware(self, function: _F) -> _F: ...
    @overload
    def middleware(self, *, only: str | None = None) -> Callable[[_F], _F]: ...
    def middleware(self, function: Any = None, *, only: str | None = None) -> Any:
        """Surround the handling of each job with a function; the first added is the outermost.

        ``only`` restricts it to handlers of one colour, ``sync`` or ``async``.
        """
        if self._middleware is None:
            from ergon_framework.ports.middleware import MiddlewareStack

            self._middleware = MiddlewareStack()
        if function is None:
            return functools.partial(self._middleware.add, kinds=("job",), only=only)
        return self._middleware.add(function, ("job",), only)

    def on_startup(self, hook: _H) -> _H:
        """Run a function, plain or async, before the first request; a failure ends the process."""
        self.startup_hooks.append(_checked_hook(hook))
        return hook

    def on_shutdown(self, hook: _H) -> _H:
        """Run a function, plain or async, after the last request; the last one added runs first."""
        self.shutdown_hooks.append(_checked_hook(hook))
        return hook

    @property
    def names(self) -> list[str]:
        """The names of all handlers, in order."""
        return sorted(self._handlers)

    @property
    def heartbeats(self) -> dict[str, float]:
        """The handlers that must report, and how often, in seconds."""
        found = {name: each.heartbeat for name, each in self._handlers.items()}
        return {name: seconds for name, seconds in found.items() if seconds is not None}

    @property
    def largest_batch(self) -> int:
        """How many jobs one call of a handler takes at most."""
        return max((each.batch for each in self._handlers.values()), default=0)

    @property
    def options(self) -> dict[str, Mapping[str, Any]]:
        """The options of each handler's jobs, under their long names."""
        return {each.name: each.options for each in self._handlers.values()}

    @property
    def has_async(self) -> bool:
        """Whether there is an async handler."""
        return any(each.is_async for each in self._handlers.values())

    @property
    def has_sync(self) -> bool:
        """Whether there is a plain handler."""
        return not all(each.is_async for each in self._handlers.values())

    def __contains__(self, name: object) -> bool:
        return name in self._handlers

    def find(self, name: str) -> Handler | None:
        """The handler of that name."""
        return self._handlers.get(name)

    def positional(self, name: str) -> list[str]:
        """The names of what a handler takes without a name."""
        return self._handlers[name].binding.positional

    def prepare(self) -> None:
        """Read all signatures now, so that a wrong one is an error at the start and not one of a
        job.

        The same for middleware that cannot surround a handler.
        """
        for each in self._handlers.values():
            each.binding  # noqa: B018 - reading it is what prepares it
            each.layers  # noqa: B018 - the same

    def open_early(self, idle_limit: float | None = None) -> None:
        """Open what handlers would open at their first use, in the time of a job.

        A plain handler that runs out of time costs its process, so that the next attempt would be
        the first one of its process again: with a short timeout none would ever come to its end.
        ``idle_limit``: seconds of waiting for stores; None: that of :mod:`engine.time_limit`.
        """
        if self.openings:
            from ergon_framework.engine.time_limit import EARLY_OPENING, open_early

            open_early(self.openings, EARLY_OPENING if idle_limit is None else idle_limit)

    def check(
        self, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they will arrive after a round trip through JSON; nothing is run.

        Refuses those that the handler could not take.
        """
        found = self._handlers.get(name)
        if found is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self._handlers, 1)
            remedy = f"did you mean {near[0]!r}?" if near else "register it, or correct the name"
            raise HandlerNotFoundError(f"there is no handler {name!r}", remedy=remedy)
        try:
            sent = msgspec.to_builtins([list(args), dict(kwargs or {})], enc_hook=_dumped)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentsError(
                f"an argument of {name!r} cannot be written as JSON: {error}",
                remedy="pass text, numbers, lists, dicts with text keys, or what is made of these",
            ) from error
        try:
            found.binding.bind(sent[0], sent[1])
            found.binding.refuse_changed(args, kwargs or {}, (sent[0], sent[1]))
        except InvalidArgumentsError as error:
            error.remedy = error.remedy or f"call it as {found.binding.signature}"
            raise
        return sent[0], sent[1]

    def job_call(
        self, handler: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> job_fields.JobCall:
        """What to store for a call of a handler, checked, with the options of its jobs.

        Dates, dataclasses, models and the like become what JSON can carry. A handler that names
        its executor may be one of another registry: it is checked if it is known here.
        """
        from ergon_framework.core.job import route  # clients ask, and executors never
        from ergon_framework.ports.job_options import JobCall

        executor, name = route(handler)
        if executor and name not in self._handlers:
            return JobCall(args, kwargs, {})
        sent = self.check(name, args, kwargs)
        found = self._handlers[name]
        return JobCall(*sent, found.options, found.binding.positional)


def _checked_heartbeat(name: str, heartbeat: Any, batch: int | None) -> float | None:
    if heartbeat is None:
        return None
    is_number = isinstance(heartbeat, int | float) and not isinstance(heartbeat, bool)
    if not is_number or not 0.1 <= heartbeat <= 86_400:
        raise WiringError(
            f"heartbeat of the handler {name!r} is {heartbeat!r}",
            remedy="give seconds from 0.1 to 86400 (a day), for example heartbeat=30",
        )
    if batch is not None:
        raise WiringError(
            f"the handler {name!r} takes many jobs in one call, so none of them can report alone",
            remedy="leave out heartbeat, or batch",
        )
    return float(heartbeat)


def _checked_batch(name: str, batch: Any, linger: Any) -> tuple[int, float]:
    if batch is None:
        if linger is None:
            return 0, 0.0
        raise WiringError(
            f"linger of the handler {name!r} says nothing without a batch",
            remedy="say how many jobs it takes: batch=100",
        )
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise WiringError(
            f"batch of the handler {name!r} is {batch!r}",
            remedy=f"give a whole number from 1 to {MAX_BATCH}",
        )
    seconds = LINGER if linger is None else linger
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= 1:
        raise WiringError(
            f"linger of the handler {name!r} is {linger!r}", remedy="give seconds from 0 to 1"
        )
    return batch, float(seconds)


def _dumped(value: Any) -> Any:
    """Text and numbers of classes of their own, and models."""
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    if not hasattr(value, "model_dump"):
        # A step of a flow says what it is, and where its result may stand.
        told = getattr(value, "not_json", "")
        if told:
            raise TypeError(f"it is {told}")
        return path_text(value)
    return model_as_json(value)


def _own_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise WiringError(f"a handler's name is text, not {name!r}", remedy="give it one")
    if not name or not name.isprintable() or name != name.strip():
        raise WiringError(
            f"{name!r} cannot name a handler",
            remedy="use printable characters without blanks around them",
        )
    return name


def _checked_hook(hook: Any) -> Hook:
    if not callable(hook):
        raise HookError(f"{hook!r} cannot be called", remedy="give a function without parameters")
    try:
        inspect.signature(hook).bind()
    except TypeError as error:
        raise HookError(
            f"the hook {_own_name(hook)!r} needs arguments", remedy="let it take none"
        ) from error
    except ValueError:  # a builtin without a readable signature: it will show
        pass
    checked: Hook = hook
    return checked
