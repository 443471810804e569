"""Functions as consumers.

::

    @consumer(orders, attempts=3, timeout=5, concurrency=8)
    async def charge(order: Order) -> None: ...


    report = asyncio.run(charge.run_async())

The function stays callable as it was. Its first parameter is the payload, converted to the type
that it declares, or the ``Transaction``, with a converted payload where it is a
``Transaction[Order]``. Further parameters are injected: by the type of what a lifespan yields, or
as ``Attempt`` and ``UnitOfWork``, which describe what is running. With ``batch=100`` the first
parameter is a list.

A :class:`FunctionConsumer` is thin: :meth:`FunctionConsumer.task_type` gives a consumer task whose
``process_transaction`` calls the function, and :attr:`FunctionConsumer.policy` its policy.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from ergon_framework.core.option_values import shown
from ergon_framework.errors import HookError, WiringError, describe
from ergon_framework.ports.colour import is_async_generator, is_coroutine, is_generator
from ergon_framework.ports.context import Attempt, current_attempt, current_unit
from ergon_framework.ports.lifespan import Dependencies, DependencyScope, refuse_uninjected
from ergon_framework.ports.middleware import (
    HandlerKind,
    MiddlewareStack,
    await_through,
    call_through,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.ports.unit_of_work import UnitOfWork
from ergon_framework.task.options import (
    BatchRule,
    ConsumerOptions,
    FindPolicy,
    read_batch,
    read_options,
)
from ergon_framework.task.payloads import Converter, payload_converter

if TYPE_CHECKING:
    from ergon_framework.engine.report import Report
    from ergon_framework.task.mixins.policies import ConsumerPolicy
    from ergon_framework.task.ready import AsyncConsumerTask, ConsumerTask

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Any])
MAX_THREADS = 1_000
"""Units that the batches of a plain function hold at most: each waits in a thread of its own."""
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_FETCH = ("fetch_transactions", "fetch_transactions_async")


class FunctionConsumer(Generic[P, T]):
    """A function that consumes transactions, and can still be called as it was written."""

    def __init__(
        self,
        function: Callable[P, T],
        source: Any = None,
        *,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        middleware: MiddlewareStack | None = None,
        dependencies: Dependencies | None = None,
        find_policy: FindPolicy | None = None,
    ) -> None:
        """``find_policy`` gives the policy of a name, at the first use."""
        self.name = _checked_name(name, function)
        self.function = function
        self.is_async = is_coroutine(function)
        self.source = source
        """The connector, or its name in the settings; None where it is said later."""
        self._options = dict(options or {})
        self._find_policy = find_policy
        has_names = find_policy is not None
        self._batch = read_batch(self.name, self._options, has_names=has_names)
        _check_threads(self.name, self._batch, is_async=self.is_async)
        self._middleware = middleware or MiddlewareStack()
        self._dependencies = dependencies or Dependencies()
        self._handlers: dict[str, Any] = {}
        # updated=(): attributes of the function, such as one called name, would replace those of
        # the consumer.
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    @functools.cached_property
    def policy(self) -> ConsumerPolicy:
        """The policy of the task's options, checked when it is first read."""
        named = self.source if is_name(self.source) else None
        return read_options(self.name, self._options, named, self._find_policy)[0]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<consumer {self.name!r}>"

    # ---- handlers ----

    def on_success(self, handler: H) -> H:
        """Call ``handler(transaction, result)`` for each unit that succeeded."""
        return self._handle("handle_transaction_success", handler)

    def on_failure(self, handler: H) -> H:
        """Call ``handler(transaction, error)`` for each unit that failed for good."""
        return self._handle("handle_transaction_exception", handler)

    def _handle(self, hook: str, handler: H) -> H:
        if hook in self._handlers:
            raise WiringError(
                f"the consumer {self.name!r} has two handlers of the same kind",
                remedy="call the one from the other",
            )
        # It becomes an attribute of a class, and must not be given the task as its first argument.
        self._handlers[hook] = staticmethod(handler)
        return handler

    # ---- as a task ----

    def task_type(
        self, scope: DependencyScope | None = None
    ) -> type[ConsumerTask | AsyncConsumerTask]:
        """A consumer task that calls the function; its name is that of the consumer.

        ``scope`` has the lifespans that the caller opens. Without one, the task opens them before
        its first unit, and closes them after the last.
        """
        from ergon_framework.task.ready import AsyncConsumerTask, ConsumerTask

        own = DependencyScope(self._dependencies) if scope is None else scope
        call = _FunctionCall(self, own, self._dependencies)
        made = _processes_async(call) if self.is_async else _processes(call)
        layers = self._middleware.around(HandlerKind.CONSUMER, self.name, is_async=self.is_async)
        if layers:
            made = (
                _with_middleware_async(layers, made)
                if self.is_async
                else _with_middleware(layers, made)
            )
        body: dict[str, Any] = {
            "__doc__": self.function.__doc__,
            "__module__": self.function.__module__,
            "process_transaction": staticmethod(made),
            **self._handlers,
        }
        if scope is None:
            body |= _opening_async(own) if self.is_async else _opening(own)
        base: Any = AsyncConsumerTask if self.is_async else ConsumerTask
        return cast("type[ConsumerTask | AsyncConsumerTask]", type(self.name, (base,), body))

    def task(
        self, connector: Any = None, scope: DependencyScope | None = None
    ) -> ConsumerTask | AsyncConsumerTask:
        """The task with its connector: the one given here, or that of the decorator."""
        chosen = self.source if connector is None else connector
        if chosen is None or isinstance(chosen, str):
            known = "no connector"
            if chosen is not None:  # a URL may hold a password
                known = f"only the name of one, {chosen!r}" if is_name(chosen) else "only a URL"
            raise WiringError(
                f"the consumer {self.name!r} has {known}",
                remedy=f"pass it: {self.name}.run(connector)",
            )
        name = self.source if is_name(self.source) else "source"
        return self.task_type(scope)({name: chosen})

    def run(self, connector: Any = None) -> Report:
        """Consume until the policy says stop, with the lifespans opened."""
        if self.is_async:
            raise HookError(
                f"the consumer {self.name!r} is async", remedy=f"await {self.name}.run_async()"
            )
        return cast("Report", self.task(connector).execute(self.policy))

    async def run_async(self, connector: Any = None) -> Report:
        """Consume on the running event loop; see :meth:`run`."""
        if not self.is_async:
            raise HookError(
                f"the consumer {self.name!r} is plain", remedy=f"call {self.name}.run()"
            )
        return await cast("Any", self.task(connector)).execute(self.policy)  # type: ignore[no-any-return]

    def policy_under(self, settings: ConsumerPolicy | None) -> ConsumerPolicy:
        """The policy of the options; a field that the operator's settings name is theirs."""
        if settings is None:
            return self.policy
        # exclude_unset on both sides: a default must not win over a value that was set explicitly.
        own = self.policy.model_dump(exclude_unset=True)
        return type(settings).model_validate(_merged(own, settings.model_dump(exclude_unset=True)))

    @property
    def batch(self) -> BatchRule | None:
        """How units are gathered for a function that takes a list."""
        return self._batch


def consumer(
    source: Any = None, /, *, name: str | None = None, **options: Unpack[ConsumerOptions]
) -> ConsumerDecorator:
    """Make a function a consumer of a connector; the options are those of ConsumerOptions."""
    check_source(source)

    def decorate(function: Callable[P, T], /) -> FunctionConsumer[P, T]:
        made = FunctionConsumer(function, source, name=name, options=options)
        # Read only to refuse a wrong option here, where the decorator stands, and not at the start.
        made.policy  # noqa: B018
        return made

    return decorate


def is_name(source: object) -> bool:
    """Whether a source is the name of a connector: a URL, which may hold a password, is none."""
    return isinstance(source, str) and "://" not in source


def check_source(source: Any) -> None:
    """Refuse what is neither a connector nor the name of one."""
    if inspect.isfunction(source):  # the decorator was written without a connector
        raise WiringError(
            f"{source.__name__!r} does not say what it consumes",
            remedy=f"write @consumer(connector) above def {source.__name__}",
        )
    if isinstance(source, type):
        raise WiringError(
            f"a consumer was given the class {source.__name__}, and not a connector",
            remedy=f"make one: {source.__name__}(...)",
        )
    is_text = isinstance(source, str) and bool(source)
    if source is None or is_text or any(callable(getattr(source, each, None)) for each in _FETCH):
        return
    if callable(getattr(source, "facts", None)):
        raise WiringError(
            f"a consumer was given {shown(source)} itself, which has many readers",
            remedy='pass the facts for one of them: zone.facts("orders")',
        )
    wrong = "an empty name" if isinstance(source, str) else f"a {type(source).__name__}"
    raise WiringError(
        f"a consumer was given {wrong} to consume from",
        remedy=f"pass a connector, which has {' or '.join(_FETCH)}, or the name of one in the"
        " settings",
    )


class ConsumerDecorator(typing.Protocol):
    """Makes a function a consumer."""

    def __call__(self, function: Callable[P, T], /) -> FunctionConsumer[P, T]:
        """The consumer."""


# ---- calling the function -----------------------------------------------------------------------


class _FunctionCall:
    """What a function is called with for one transaction, or for a list of them."""

    def __init__(
        self, owner: FunctionConsumer[..., Any], scope: DependencyScope, known: Dependencies
    ) -> None:
        self.name = owner.name
        self.function: Callable[..., Any] = owner.function
        self.batch = owner.batch
        first, *rest = _parameters(owner.name, owner.function)
        hints = _hints(owner.name, owner.function)
        is_settled_by_hand = owner.policy.loop.settlement == "manual"
        self.convert = _argument(owner, hints.get(first.name, Any), is_settled_by_hand)
        self.injected = {
            each.name: found
            for each in rest
            if (
                found := _injected(
                    owner.name, each, hints.get(each.name), scope, known, is_async=owner.is_async
                )
            )
        }

    def others(self) -> dict[str, Any]:
        """The arguments beside the payload."""
        return {name: find() for name, find in self.injected.items()}


def _processes(call: _FunctionCall) -> Callable[[Transaction], Any]:
    function, convert = call.function, call.convert
    if call.batch is not None:
        from ergon_framework.task.batches import CallBatches, ThreadBatches

        run: Callable[[list[Any]], Any] = lambda units: function(units, **call.others())  # noqa: E731
        rule = call.batch
        batches = CallBatches(lambda: ThreadBatches(call.name, rule, run))
        return lambda transaction: batches.current().join(convert(transaction))
    if call.injected:
        return lambda transaction: function(convert(transaction), **call.others())
    return lambda transaction: function(convert(transaction))


def _processes_async(call: _FunctionCall) -> Callable[[Transaction], Any]:
    function, convert = call.function, call.convert
    if call.batch is not None:
        from ergon_framework.task.batches import AsyncBatches, CallBatches

        run: Callable[[list[Any]], Any] = lambda units: function(units, **call.others())  # noqa: E731
        rule = call.batch
        batches = CallBatches(lambda: AsyncBatches(call.name, rule, run))

        async def join(transaction: Transaction) -> Any:
            return await batches.current().join(convert(transaction))

        return join
    if call.injected:

        async def process_injected(transaction: Transaction) -> Any:
            return await function(convert(transaction), **call.others())

        return process_injected

    async def process(transaction: Transaction) -> Any:
        return await function(convert(transaction))

    return process


def _with_middleware(layers: Any, process: Callable[[Transaction], Any]) -> Callable[..., Any]:
    def process_inside(transaction: Transaction) -> Any:
        return call_through(layers, _unit(), lambda: process(transaction))

    return process_inside


def _with_middleware_async(
    layers: Any, process: Callable[[Transaction], Any]
) -> Callable[..., Any]:
    async def process_inside(transaction: Transaction) -> Any:
        return await await_through(layers, _unit(), lambda: process(transaction))

    return process_inside


def _unit() -> UnitOfWork:
    unit = current_unit()
    if unit is None:
        raise AssertionError("a transaction is processed outside of an attempt")
    return unit


def _opening(scope: DependencyScope) -> dict[str, Any]:
    """What runs a plain task, with its lifespans opened around it."""
    from ergon_framework.task.ready import ConsumerTask

    def execute(self: ConsumerTask, policy: ConsumerPolicy | None = None) -> Report:
        with _opened(scope):
            return self.consume_transactions(policy)

    # What `ergon tasks process` calls: a single unit needs the lifespans as well.
    def start_processing(self: ConsumerTask, *given: Any) -> tuple[bool, Any]:
        with _opened(scope):
            return ConsumerTask._start_processing(self, *given)  # noqa: SLF001 - a subclass

    return {"execute": execute, "_start_processing": start_processing}


def _opening_async(scope: DependencyScope) -> dict[str, Any]:
    """The async version of :func:`_opening`."""
    from ergon_framework.task.ready import AsyncConsumerTask

    async def execute(self: AsyncConsumerTask, policy: ConsumerPolicy | None = None) -> Report:
        async with _opened_async(scope):
            return await self.consume_transactions(policy)

    async def start_processing(self: AsyncConsumerTask, *given: Any) -> tuple[bool, Any]:
        async with _opened_async(scope):
            return await AsyncConsumerTask._start_processing(self, *given)  # noqa: SLF001 - as above

    return {"execute": execute, "_start_processing": start_processing}


@contextmanager
def _opened(scope: DependencyScope) -> Iterator[None]:
    """The plain lifespans, opened and closed around the call of a plain consumer.

    Async ones are left to async handlers; a plain consumer that needs one is refused when its
    parameters are read.
    """
    from contextlib import ExitStack

    from ergon_framework.engine.time_limit import close_lifespan, open_lifespan

    with ExitStack() as closing:
        for each in scope.hooks():
            if not each.is_async:
                open_lifespan(each)
                closing.callback(close_lifespan, each)
        yield


@asynccontextmanager
async def _opened_async(scope: DependencyScope) -> AsyncIterator[None]:
    from contextlib import AsyncExitStack

    from ergon_framework.engine.time_limit import close_lifespan_async, open_lifespan_async

    async with AsyncExitStack() as closing:
        for each in scope.hooks():
            await open_lifespan_async(each)
            closing.push_async_callback(close_lifespan_async, each)
        yield


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        is_table = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(old, value) if is_table else value  # type: ignore[arg-type]
    return merged


# ---- reading the function -----------------------------------------------------------------------


def _checked_name(name: str | None, function: Any) -> str:
    own: Any = _own_name(function) if name is None else name
    if not callable(function):
        raise HookError(f"{function!r} cannot be called", remedy="decorate a function")
    if is_generator(function) or is_async_generator(function):
        raise HookError(f"the consumer {own!r} is a generator", remedy="return one value")
    if not isinstance(own, str) or not own or not own.isprintable() or own.strip() != own:
        raise WiringError(
            f"{shown(own)} cannot name a consumer",
            remedy="use printable characters without blanks around them",
        )
    return str(own)


def _check_threads(name: str, batch: BatchRule | None, *, is_async: bool) -> None:
    if batch is not None and not is_async and batch.size * batch.calls > MAX_THREADS:
        raise WiringError(
            f"the consumer {name!r} would need {batch.size * batch.calls} threads, one for each"
            f" unit of its batches; at most {MAX_THREADS} are allowed",
            remedy="write it with async def, which needs none, or make batch smaller",
        )


def _own_name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def _parameters(name: str, function: Callable[..., Any]) -> list[Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise HookError(
            f"the consumer {name!r} has no readable signature", remedy="wrap it in a function"
        ) from error
    if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, *_NAMED[:1]):
        raise HookError(
            f"the consumer {name!r} takes no payload",
            remedy="let its first parameter be the payload: def charge(order: Order)",
        )
    return parameters


def _hints(name: str, function: Any) -> dict[str, Any]:
    """The types of the parameters, read when a task is made: they may be defined below it."""
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__annotations__"):
        function = type(function).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise HookError(
            f"an annotation of the consumer {name!r} cannot be read: {describe(error)}",
            remedy="annotate with types that its module imports outside of TYPE_CHECKING",
        ) from error


def _argument(
    owner: FunctionConsumer[..., Any], hint: Any, is_settled_by_hand: bool
) -> Callable[[Transaction], Any]:
    """What makes the first argument, or one element of its list, from a transaction."""
    if owner.batch is not None:
        hint = _element(owner.name, hint)
    if hint is Transaction:
        return lambda transaction: transaction
    # Plain Transaction was answered above; here it is Transaction[Order], whose payload is
    # converted, or the type of a payload.
    if typing.get_origin(hint) is not Transaction:
        payload = payload_converter(owner.name, hint)
        if payload is None:
            return lambda transaction: transaction.payload
        return functools.partial(_converted, payload)
    if is_settled_by_hand:
        raise WiringError(
            f"the consumer {owner.name!r} takes a Transaction with a converted payload, which is a"
            " copy that cannot be settled, and with settlement='manual' nobody else does",
            remedy="annotate it with Transaction, or leave settlement to the engine",
        )
    payload = payload_converter(owner.name, typing.get_args(hint)[0])
    if payload is None:
        return lambda transaction: transaction
    return functools.partial(_with_converted, payload)


def _converted(convert: Converter, transaction: Transaction) -> Any:
    return convert(transaction.payload)


def _with_converted(convert: Converter, transaction: Transaction) -> Transaction:
    return transaction.with_payload(convert(transaction.payload))


def _element(name: str, hint: Any) -> Any:
    """The type of the elements of a batch."""
    if hint in (Any, list):
        return Any
    if typing.get_origin(hint) is list:
        return typing.get_args(hint)[0]
    raise HookError(
        f"the consumer {name!r} has a batch, and its first parameter is no list",
        remedy="annotate it as a list, such as orders: list[Order]; to fetch many units at once and"
        " handle them one by one, say prefetch instead of batch",
    )


def _refuse_async_lifespan(name: str, kind: type, known: Dependencies) -> None:
    for each in known.lifespans:
        if each.is_async and kind in each.provides and kind not in known.overrides:
            raise WiringError(
                f"the consumer {name!r} is plain, and {kind.__name__} comes from the async lifespan"
                f" {each.name!r}",
                remedy="write the lifespan with def, or the consumer with async def",
            )


def _injected(
    name: str,
    parameter: Parameter,
    hint: Any,
    scope: DependencyScope,
    known: Dependencies,
    *,
    is_async: bool,
) -> Callable[[], Any] | None:
    """What finds the value of a further parameter; None where it keeps its default."""
    if parameter.kind in _VARIADIC:
        return None
    if hint is Attempt:
        return current_attempt
    if hint is UnitOfWork:
        return current_unit
    kind = known.injected(hint)
    if kind is not None and parameter.kind in _NAMED:
        if not is_async:
            _refuse_async_lifespan(name, kind, known)
        return functools.partial(scope.value, kind)
    refuse_uninjected(f"the consumer {name!r}", {parameter.name: parameter}, ())
    if parameter.default is not Parameter.empty:
        return None
    raise HookError(
        f"nothing can be injected for the parameter {parameter.name!r} of the consumer {name!r}",
        remedy="annotate it with the type that a lifespan yields, with Attempt or with UnitOfWork,"
        " or give it a default",
    )
