"""Lifespans: what an application opens before its handlers run, and closes after the last.

::

    def database() -> Iterator[Pool]:
        with Pool(URL) as pool:
            yield pool  # handlers get it through a parameter annotated Pool

What a lifespan yields is injected by type. The annotation says which type that is: a process that
only enqueues has to know which parameters are injected, and opens nothing. A tuple of types stands
for several values, None for none.

A lifespan is opened once per process that runs handlers. An async one is opened, and closed, by one
task of the event loop that its handlers run on. Opening and closing have a limit each, which is an
option of the lifespan: a server that never answers must not keep a process from saying so.
"""

from __future__ import annotations

import inspect
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

from ergon_framework.core.option_values import is_number
from ergon_framework.errors import HookError, LifespanTimeoutError, WiringError, describe

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[[], Any])
_PLAIN = (object, str, bytes, bool, int, float, complex, list, dict, tuple, set, frozenset)
"""Types that say nothing about which value is meant; a parameter of such a type is an argument."""
_MISSING = object()

STARTUP_TIMEOUT = 60.0
"""Seconds that a lifespan has until its yield, where it says nothing else."""
SHUTDOWN_TIMEOUT = 10.0
"""Seconds that it has after its yield."""
MAX_TIMEOUT = 24 * 3600.0
"""The longest limit, and what a lifespan without one is taken for where a number is needed."""


class LifespanOptions(TypedDict, total=False):
    """How long a lifespan may take, in seconds; None: as long as it likes."""

    startup_timeout: float | None
    shutdown_timeout: float | None


class _Injected:
    """The default of a parameter that is injected: only a call by hand ever sees it."""

    def __getattr__(self, name: str) -> Any:
        raise WiringError(
            f"{name!r} was asked of a value that has not been injected",
            remedy="run the handler through a worker or app.drain(), or pass the value",
        )

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()
"""``def book(line: str, ledger: Ledger = INJECTED)``: a default that lets a type checker accept a
call without the parameter. At run time the annotation decides, with or without it."""


def refuse_uninjected(
    owner: str, parameters: Mapping[str, inspect.Parameter], found: Collection[str]
) -> None:
    """Refuse a parameter whose default is ``INJECTED`` and that is not among the ``found``.

    Without a value its function would fail in each attempt, long after it was declared.
    """
    for name, each in parameters.items():
        if each.default is INJECTED and name not in found:
            said = each.annotation
            kind = said if isinstance(said, str) else inspect.formatannotation(said)
            raise WiringError(
                f"the parameter {name!r} of {owner} is INJECTED, and no lifespan yields {kind}",
                remedy=f"declare one before it: def open_{name}() -> Iterator[{kind}]: yield ...",
            )


class Lifespan:
    """A function that yields once, and the types of the values it yields."""

    def __init__(self, function: Callable[[], Any], **options: Unpack[LifespanOptions]) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        known = {"startup_timeout": STARTUP_TIMEOUT, "shutdown_timeout": SHUTDOWN_TIMEOUT}
        limits = {**known, **checked_limits(self.name, options)}
        self.startup_timeout = limits["startup_timeout"]
        self.shutdown_timeout = limits["shutdown_timeout"]
        self.is_async = inspect.isasyncgenfunction(function)
        if not self.is_async and not inspect.isgeneratorfunction(function):
            raise HookError(
                f"the lifespan {self.name!r} is no generator function",
                remedy="let it yield once: what stands before the yield opens, what follows closes",
            )
        if inspect.signature(function).parameters:
            raise HookError(
                f"the lifespan {self.name!r} takes arguments", remedy="let it take none"
            )
        self.function = function
        self.place = place_of(function)
        # Types may be defined below it, or later in a module that is being imported: those are
        # read when they are needed, and before a run begins.
        self._provides = _yielded_by_now(self.name, function)

    @property
    def provides(self) -> tuple[type, ...]:
        """The types of what it yields."""
        if self._provides is None:
            self._provides = _yielded(self.name, self.function)
        return self._provides

    def values(self, yielded: Any) -> dict[type, Any]:
        """The values that the function yielded, by type."""
        kinds = self.provides
        if not kinds:
            return {}
        values = yielded if len(kinds) > 1 else (yielded,)
        if not isinstance(values, tuple) or len(values) != len(kinds):
            raise HookError(
                f"the lifespan {self.name!r} yields a {type(yielded).__name__}, and its annotation"
                f" says {len(kinds)} values",
                remedy="yield a tuple with a value for each type",
            )
        return dict(zip(kinds, values, strict=True))


class Dependencies:
    """The lifespans that an application declares, and what may be injected from them."""

    def __init__(self) -> None:
        self.lifespans: list[Lifespan] = []
        self.overrides: dict[type, Any] = {}
        """Values in the place of those that lifespans yield: for tests."""
        self._scopes: weakref.WeakSet[DependencyScope] = weakref.WeakSet()

    def add(self, function: F, **options: Unpack[LifespanOptions]) -> F:
        """Open a lifespan before the first handler, after those that were added before it."""
        self.lifespans.append(Lifespan(function, **options))
        return function

    def check(self) -> None:
        """Refuse lifespans whose types cannot be read, before anything is opened or started."""
        for each in self.lifespans:
            _ = each.provides

    @property
    def startup_timeout(self) -> float:
        """Seconds that all of them may take to open, one after the other."""
        limits = (each.startup_timeout for each in self.lifespans)
        return _summed(limits)

    @property
    def shutdown_timeout(self) -> float:
        """Seconds that all of them may take to close, one after the other."""
        return _summed(each.shutdown_timeout for each in self.lifespans)

    def injected(self, annotation: Any) -> type | None:
        """The type of the value that a parameter with this annotation gets; None: an argument.

        A value fits its own type, and the classes that its type derives from.
        """
        if not isinstance(annotation, type) or annotation in _PLAIN:
            return None
        if annotation in self.overrides:
            return annotation
        known = [kind for each in self.lifespans for kind in each.provides] + [*self.overrides]
        if annotation in known:
            self._refuse_two(annotation)
            return annotation
        fitting = sorted({kind for kind in known if issubclass(kind, annotation)}, key=repr)
        if len(fitting) > 1:
            names = " and ".join(each.__name__ for each in fitting)
            raise WiringError(
                f"{annotation.__name__} may be injected from {names}",
                remedy="annotate the parameter with one of them",
            )
        return fitting[0] if fitting else None

    def _refuse_two(self, kind: type) -> None:
        """Whichever were taken, half of the handlers would have meant the other."""
        names = [repr(each.name) for each in self.lifespans if kind in each.provides]
        if len(names) > 1:
            raise WiringError(
                f"a {kind.__name__} may be injected from the lifespans {' and '.join(names)}",
                remedy=f"let each yield a type of its own: class Archive({kind.__name__}): ...",
            )

    def is_overridden(self, lifespan: Lifespan) -> bool:
        """Whether everything that a lifespan yields has a value in its place."""
        kinds = lifespan.provides
        return bool(kinds) and all(kind in self.overrides for kind in kinds)

    def begin(self, scope: DependencyScope) -> None:
        """Make :meth:`value` find the values that this scope opens, for as long as it lives."""
        self._scopes.add(scope)

    def is_open(self, lifespan: Lifespan) -> bool:
        """Whether some scope of this process has opened a lifespan that provides something."""
        kinds = lifespan.provides
        return bool(kinds) and any(
            all(scope.has(kind) for kind in kinds) for scope in tuple(self._scopes)
        )

    def value(self, kind: type) -> Any:
        """The value of an injected type, for code that is called by a handler.

        The runner of the handler has opened the lifespans, in a scope of this process.
        """
        for scope in tuple(self._scopes):
            if scope.has(kind):
                return scope.value(kind)
        # No scope has it. A new one answers with an override, or raises the error that says what to
        # do.
        return DependencyScope(self).value(kind)


class DependencyScope:
    """The lifespans of an application, opened for one process or one event loop."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._values: dict[type, Any] = {}
        dependencies.begin(self)

    def has(self, kind: type) -> bool:
        """Whether the lifespan of an injected type is open here."""
        return kind in self._values

    def injected(self, hints: Mapping[str, Any]) -> dict[str, type]:
        """Which of these annotated parameters get a value, and of which type."""
        found = {name: self._dependencies.injected(hint) for name, hint in hints.items()}
        return {name: kind for name, kind in found.items() if kind is not None}

    def value(self, kind: type) -> Any:
        """The value of an injected type."""
        found = self._dependencies.overrides.get(kind, self._values.get(kind, _MISSING))
        if found is _MISSING:
            raise WiringError(
                f"no {kind.__name__} is open: its lifespan has not been run in this process",
                remedy="run the handler through a worker, or pass the value when you call it",
            )
        return found

    def hooks(self) -> Iterator[LifespanHooks]:
        """How to open and to close each lifespan, in the order of opening.

        One whose values are all overridden is not opened: a test would reach a real server.
        """
        for each in self._dependencies.lifespans:
            if self._dependencies.is_overridden(each):
                yield LifespanHooks(each, lambda: None, lambda: None, is_async=False)
            elif each.is_async:
                yield _hooks_async(each, self._values)
            else:
                yield _hooks(each, self._values)


class LifespanHooks(NamedTuple):
    """Opens and closes one lifespan; where it is async, both give a coroutine.

    Neither has a time limit of its own: the caller knows how its thread can be interrupted.
    """

    lifespan: Lifespan
    open: Callable[[], Any]
    close: Callable[[], Any]
    """Does nothing if the lifespan is not open."""
    is_async: bool

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.lifespan.name

    def not_opened(self) -> LifespanTimeoutError:
        """The error of a lifespan that did not yield in time."""
        seconds = self.lifespan.startup_timeout or 0.0
        what = f"did not come to its yield within {seconds:g} s"
        return self._too_slow(what, "startup_timeout", seconds)

    def not_closed(self) -> LifespanTimeoutError:
        """The error of a lifespan that did not end in time."""
        seconds = self.lifespan.shutdown_timeout or 0.0
        what = f"did not end within {seconds:g} s after its yield"
        return self._too_slow(what, "shutdown_timeout", seconds)

    def _too_slow(self, what: str, option: str, seconds: float) -> LifespanTimeoutError:
        return LifespanTimeoutError(
            f"the lifespan {self.name!r} {what}",
            remedy=f"see what it waits for{self._at}; if it needs longer, write"
            f" @app.lifespan({option}={10 * seconds:g})",
        )

    @property
    def _at(self) -> str:
        return f", in {self.lifespan.place}" if self.lifespan.place else ""


def place_of(function: Callable[..., Any]) -> str:
    """The file and line where a function is declared; empty for one that has no code of its own."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _summed(limits: Iterable[float | None]) -> float:
    return min(MAX_TIMEOUT, sum(MAX_TIMEOUT if each is None else each for each in limits))


def _hooks(lifespan: Lifespan, values: dict[type, Any]) -> LifespanHooks:
    opened: list[Any] = []

    def open_it() -> None:
        manager = contextmanager(lifespan.function)()
        yielded = manager.__enter__()
        opened.append(manager)
        try:
            values.update(lifespan.values(yielded))
        except HookError as refused:  # the caller closes only lifespans that were opened
            try:
                close_it()
            except Exception as error:
                refused.add_note(_not_closed_either(error))
            raise

    def close_it() -> None:
        if opened:
            _forget(lifespan, values)
            opened.pop().__exit__(None, None, None)

    return LifespanHooks(lifespan, open_it, close_it, is_async=False)


def _hooks_async(lifespan: Lifespan, values: dict[type, Any]) -> LifespanHooks:
    opened: list[_Holder] = []

    async def open_it() -> None:
        holder = _Holder(asynccontextmanager(lifespan.function)())
        yielded = await holder.open()
        opened.append(holder)
        try:
            values.update(lifespan.values(yielded))
        except HookError as refused:
            try:
                await close_it()
            except Exception as error:
                refused.add_note(_not_closed_either(error))
            raise

    async def close_it() -> None:
        if opened:
            _forget(lifespan, values)
            await opened.pop().close()

    return LifespanHooks(lifespan, open_it, close_it, is_async=True)


def _not_closed_either(error: Exception) -> str:
    return f"it could not be closed either: {describe(error)}"


def _forget(lifespan: Lifespan, values: dict[type, Any]) -> None:
    for kind in lifespan.provides:
        values.pop(kind, None)


class _Holder:
    """Keeps an async context manager open in a task: task groups refuse to be left by another."""

    def __init__(self, manager: Any) -> None:
        import asyncio  # late: an executor without async code starts without it

        self._manager = manager
        self._closing = asyncio.Event()
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> Any:
        import asyncio

        self._task = asyncio.create_task(self._hold())
        try:
            await asyncio.wait((self._opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # it has had its time
            self._task.cancel()
            raise
        if not self._opened.done():
            self._task.result()  # raises what the lifespan raised
        return self._opened.result()

    async def close(self) -> None:
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _hold(self) -> None:
        async with self._manager as value:
            self._opened.set_result(value)
            await self._closing.wait()


def checked_limits(name: str, options: Mapping[str, Any]) -> Mapping[str, float | None]:
    """The limits of a lifespan; a value that is none is refused with its option."""
    for option, value in options.items():
        if option not in LifespanOptions.__annotations__:
            known = " and ".join(sorted(LifespanOptions.__annotations__, reverse=True))
            raise WiringError(
                f"the lifespan {name!r} has no option {option!r}", remedy=f"there are {known}"
            )
        if value is not None and not (is_number(value) and 0 < value <= MAX_TIMEOUT):
            raise WiringError(
                f"{option} of the lifespan {name!r} is {value!r}",
                remedy="give it a number of seconds above 0, or None for no limit",
            )
    return options


def _yielded_by_now(name: str, function: Callable[[], Any]) -> tuple[type, ...] | None:
    """The types that a function yields; raises if a lifespan cannot yield them. None while a name
    in its hint has no value yet.
    """
    try:
        return _yielded(name, function)
    except HookError as error:
        if isinstance(error.__cause__, (NameError, AttributeError)):
            return None
        raise


def _yielded(name: str, function: Callable[[], Any]) -> tuple[type, ...]:
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception as error:
        raise HookError(
            f"the annotation of the lifespan {name!r} cannot be read: {describe(error)}",
            remedy="annotate with types that its module imports outside of TYPE_CHECKING",
        ) from error
    arguments = typing.get_args(hint)
    if not arguments:
        raise HookError(
            f"the lifespan {name!r} does not say what it yields",
            remedy=f"annotate it: def {name}() -> Iterator[Pool], or Iterator[None]",
        )
    first = arguments[0]
    parts = typing.get_args(first) if typing.get_origin(first) is tuple else (first,)
    wanted = tuple(each for each in parts if each not in (None, types.NoneType))
    for each in wanted:
        if not isinstance(each, type) or each in _PLAIN:
            raise HookError(
                f"the lifespan {name!r} yields {each!r}, by which no parameter can be found",
                remedy="yield an object of a class of its own",
            )
    return wanted
