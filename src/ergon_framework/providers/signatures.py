"""How the arguments of a function become a provider's payload, and its result the data.

A payload names each argument, so that records, keys and queues can distinguish calls. ``timeout``
and what a lifespan provides are not part of it: they belong to one attempt. A result that is no
dict is wrapped, and a result that was read back from a store gets its type again.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeVar

from ergon_framework.errors import HookError, describe, name_of
from ergon_framework.ports.lifespan import refuse_uninjected
from ergon_framework.ports.middleware import HandlerKind, await_through, call_through
from ergon_framework.ports.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from ergon_framework.ports.lifespan import Dependencies
    from ergon_framework.ports.middleware import Around, MiddlewareStack
    from ergon_framework.providers.execution import ProviderExecutionContext

T = TypeVar("T")

TIMEOUT = "timeout"
"""The parameter that is given what an attempt may take, in seconds."""
VALUE = "value"
"""The key under which data has a result that is no dict."""
_AS_THEY_ARE = (str, bool, int, float, list, dict, tuple, set, frozenset, bytes, object, type(None))
_IN_JSON = (str, bool, int, float, list, dict)


class ResultData(dict[str, Any]):
    """The data of a call whose function returned something else than a dict."""

    __slots__ = ("result",)
    result: Any
    """What the function returned, as it was."""


class CallSignature:
    """What a function takes: from its caller, from its attempt, and from lifespans."""

    def __init__(self, function: Callable[..., Any], dependencies: Dependencies | None) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self._dependencies = dependencies
        self._parameters = _parameters(self.name, function)
        timeout = self._parameters.get(TIMEOUT)
        self.takes_timeout = timeout is not None and timeout.kind is Parameter.KEYWORD_ONLY
        """Whether the function takes the seconds of its attempt as an argument."""
        default: Any = timeout.default if timeout is not None and self.takes_timeout else None
        self.own_timeout = float(default) if type(default) in (int, float) else None
        """The default of ``timeout``: what an attempt of this function may take at most."""
        self._read: _Read | None = None

    def check_timeout_may_be_none(self) -> None:
        """Refuse a ``timeout`` that is always None although its annotation does not say so."""
        hint = str(self._parameters[TIMEOUT].annotation)
        if "None" not in hint and self.own_timeout is None and hint != str(Parameter.empty):
            raise HookError(
                f"{self.name}() takes a timeout, and its provider has neither timeout nor budget",
                remedy="give the provider one of them, or annotate timeout: float | None",
            )

    def payload(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], float | None]:
        """The arguments by name, and the timeout if the caller gave one."""
        read = self._read or self._read_types()
        timeout = kwargs.pop(TIMEOUT, None) if self.takes_timeout else None
        if not args and not kwargs and read.is_fine_alone:
            return {}, timeout
        payload = read.named(args, kwargs)
        if payload is None:
            try:
                payload = read.caller.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self.name}() {error}") from None
            if read.more is not None:
                payload.update(payload.pop(read.more, {}))
        if read.models:
            for name, hint in read.among(read.models, payload):
                payload[name] = self._as_json(name, hint, payload[name])
        return payload, timeout

    def _as_json(self, name: str, hint: Any, given: Any) -> Any:
        """An argument as payloads have it; refused where attempts would be given another value."""
        from ergon_framework.ports.round_trip import came_back, change_told, needs_check
        from ergon_framework.providers.errors import ProviderBadRequestError

        encoded = to_json(given)
        if not needs_check(given):
            return encoded
        try:
            arrived = from_json(encoded, hint)
        except ProviderBadRequestError:
            return encoded  # the result of the call says so
        if came_back(given, arrived):
            return encoded
        declared = hint if typing.get_args(hint) else getattr(hint, "__name__", hint)
        raise ProviderBadRequestError(
            f"{self.name}(): {change_told(name, given, arrived)}",
            never_sent=True,
            remedy=f"pass {name} as it is declared: {declared}",
        )

    def arguments(self, payload: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """What one attempt calls the function with."""
        read = self._read or self._read_types()
        given = dict(payload)
        if read.classes:
            for name, kind in read.among(read.classes, payload):
                value = given[name]
                if type(value) in _IN_JSON and not _is_instance(value, kind):
                    given[name] = from_json(value, kind)
        if read.models:
            for name, hint in read.among(read.models, payload):
                given[name] = from_json(given[name], hint)
        if self.takes_timeout:
            given[TIMEOUT] = timeout
        if read.injected and self._dependencies is not None:
            for name, kind in read.injected.items():
                given[name] = self._dependencies.value(kind)
        return given

    def data(self, result: Any) -> dict[str, Any]:
        """The data of a call that returned ``result``."""
        # A dict with the one key that marks a wrapped result is wrapped itself: no doubt is left.
        if isinstance(result, dict) and not (len(result) == 1 and VALUE in result):
            return result
        if hasattr(type(result), "__await__"):
            raise self._never_awaited(result)
        read = self._read or self._read_types()
        data = ResultData({VALUE: to_json(result) if read.has_model_result else result})
        data.result = result
        return data

    def _never_awaited(self, result: Any) -> HookError:
        """A plain function around an async one: the call has only begun, with nothing around it."""
        if hasattr(result, "close"):
            result.close()
        return HookError(
            f"{self.name}() returned a {type(result).__name__}, which nobody awaits",
            remedy="make it async, and await there what it calls",
        )

    def result(self, data: dict[str, Any], *, is_read: bool) -> Any:
        """What the function returned; ``is_read`` says that a store had it as JSON."""
        if type(data) is ResultData:
            return data.result
        value = data[VALUE] if len(data) == 1 and VALUE in data else data
        read = self._read or self._read_types()
        return value if not is_read or read.returns is Any else from_json(value, read.returns)

    @property
    def injected(self) -> dict[str, type]:
        """The parameters that lifespans provide, with their types."""
        return (self._read or self._read_types()).injected

    def _read_types(self) -> _Read:
        # At the first call: annotations may name what is defined below the function, and
        # lifespans may be declared after it.
        self._read = _Read(self.name, self.function, self._parameters, self._dependencies)
        return self._read


class AttemptMiddleware:
    """The middleware around the attempts of one operation."""

    def __init__(self, name: str, middleware: MiddlewareStack | None, *, is_async: bool) -> None:
        self.name = name
        """The name of the provider and its operation."""
        self.is_async = is_async
        self._middleware = middleware
        self._layers: tuple[Around, ...] | None = None

    def layers(self) -> tuple[Around, ...]:
        """The middleware around it, as it was declared before the first call."""
        if self._layers is None:
            stack = self._middleware
            self._layers = (
                ()
                if stack is None
                else stack.around(HandlerKind.PROVIDER, self.name, is_async=self.is_async)
            )
        return self._layers

    def unit(self, context: ProviderExecutionContext) -> UnitOfWork:
        """The attempt as middleware sees it."""
        trace = {} if context.traceparent is None else {"traceparent": context.traceparent}
        return UnitOfWork(
            HandlerKind.PROVIDER.value,
            context.correlation_id or "",
            self.name,
            context.attempt,
            context.deadline,
            context.correlation_id,
            trace,
        )


class FunctionAttempt:
    """Makes one attempt of one function, inside of its middleware."""

    def __init__(
        self,
        signature: CallSignature,
        provider: str,
        operation: str,
        middleware: MiddlewareStack | None,
        *,
        is_async: bool,
        is_stream: bool = False,
    ) -> None:
        self.signature = signature
        self.operation = operation
        self.is_async = is_async
        self.is_stream = is_stream
        self.around = AttemptMiddleware(f"{provider}.{operation}", middleware, is_async=is_async)

    def __call__(self, payload: Mapping[str, Any], context: ProviderExecutionContext) -> Any:
        """What the function returned, as data."""
        signature = self.signature
        given = signature.arguments(payload, context.attempt_timeout_seconds)
        layers = self.around.layers()
        if not layers:
            return signature.data(signature.function(**given))
        call = partial(signature.function, **given)
        return signature.data(call_through(layers, self.around.unit(context), call))

    async def acall(self, payload: Mapping[str, Any], context: ProviderExecutionContext) -> Any:
        """Make an attempt of a coroutine function."""
        signature = self.signature
        given = signature.arguments(payload, context.attempt_timeout_seconds)
        layers = self.around.layers()
        if not layers:
            return signature.data(await signature.function(**given))
        call = partial(signature.function, **given)
        return signature.data(await await_through(layers, self.around.unit(context), call))

    def opens(
        self, *, payload: Mapping[str, Any], context: ProviderExecutionContext, **_: Any
    ) -> Any:
        """The iterator of a function that yields; it has not begun."""
        signature = self.signature
        return signature.function(**signature.arguments(payload, context.attempt_timeout_seconds))

    def first_of(self, end: Any, items: Any, context: ProviderExecutionContext) -> Any:
        """The first item or ``end``, inside of the middleware; of async items an awaitable."""
        layers = self.around.layers()
        if self.is_async:
            return await_through(layers, self.around.unit(context), partial(anext, items, end))
        return call_through(layers, self.around.unit(context), partial(next, items, end))


class _Read:
    """What the annotations of a function say."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        parameters: Mapping[str, Parameter],
        dependencies: Dependencies | None,
    ) -> None:
        hints = _hints(name, function, dependencies)
        self.injected: dict[str, type] = {}
        for each in parameters:
            kind = None if dependencies is None else dependencies.injected(hints.get(each))
            if kind is not None:
                self.injected[each] = kind
        refuse_uninjected(f"the call {name!r}", parameters, self.injected)
        timeout = parameters.get(TIMEOUT)
        has_timeout = timeout is not None and timeout.kind is Parameter.KEYWORD_ONLY
        hidden = {*self.injected, *([TIMEOUT] if has_timeout else [])}
        kept = [each for each in parameters.values() if each.name not in hidden]
        self.caller = inspect.Signature(kept)
        self.more = next((e.name for e in kept if e.kind is Parameter.VAR_KEYWORD), None)
        self._positions = [e.name for e in kept if e.kind is Parameter.POSITIONAL_OR_KEYWORD]
        self._names = frozenset(each.name for each in kept)
        self._others = self._names - {self.more}
        self._required = frozenset(e.name for e in kept if e.default is Parameter.empty)
        self.is_fine_alone = not self._required - {self.more}
        """Whether a call may be made without arguments."""
        known = {each.name: hints[each.name] for each in kept if each.name in hints}
        self.models = {each: hint for each, hint in known.items() if _has_model(hint)}
        self.classes = {
            each: hint
            for each, hint in known.items()
            if isinstance(hint, type) and hint not in _AS_THEY_ARE and each not in self.models
        }
        self.returns = hints.get("return", Any)
        self.has_model_result = _has_model(self.returns)

    def among(self, table: Mapping[str, T], payload: Mapping[str, Any]) -> Iterator[tuple[str, T]]:
        """The arguments of a payload that a table knows; ``**more`` stands for all other names."""
        for name, known in table.items():
            if name == self.more:
                yield from ((each, known) for each in payload if each not in self._others)
            elif name in payload:
                yield name, known

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments by name if they are plainly right; a signature binds in ten times that."""
        if self.more is not None or len(args) > len(self._positions):
            return None
        payload = dict(zip(self._positions, args, strict=False))
        if kwargs:
            if not self._names.issuperset(kwargs) or not payload.keys().isdisjoint(kwargs):
                return None
            payload.update(kwargs)
        return payload if payload.keys() >= self._required else None


def to_json(value: Any) -> Any:
    """A value with pydantic models in it, as JSON has it."""
    import msgspec

    return msgspec.to_builtins(value, enc_hook=_dumped)


def from_json(value: Any, hint: Any) -> Any:
    """A value read from JSON, converted to its annotation."""
    import msgspec

    from ergon_framework.providers.errors import ProviderBadRequestError

    try:
        return msgspec.convert(value, hint, dec_hook=_loaded)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        # Their texts may show the value; the name of the class says enough.
        raise ProviderBadRequestError(
            f"a value is no {getattr(hint, '__name__', hint)}: {name_of(error)}", never_sent=True
        ) from error


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a TypedDict or a protocol, which a value cannot be asked about
        return True


def _dumped(value: Any) -> Any:
    from ergon_framework.ports.round_trip import model_as_json

    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return model_as_json(value)


def _loaded(kind: type, value: Any) -> Any:
    load = getattr(kind, "model_validate", None)
    if load is not None:
        return load(value)
    if isinstance(value, kind):
        return value
    raise TypeError(f"{kind.__name__} cannot be read from JSON")


def _has_model(hint: Any) -> bool:
    """Whether a pydantic model is part of an annotation."""
    if isinstance(hint, type) and hasattr(hint, "model_dump"):
        return True
    return any(map(_has_model, typing.get_args(hint)))


def _parameters(name: str, function: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise HookError(
            f"the parameters of {name!r} cannot be read", remedy="write a function in Python"
        ) from error
    for each in found.values():
        if each.kind in (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY):
            raise HookError(
                f"{name}() takes {each.name!r} by position alone, and a payload needs a name",
                remedy=f"name each argument: def {name}(pair, amount)",
            )
    return found


def _hints(
    name: str, function: Callable[..., Any], dependencies: Dependencies | None
) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception as error:
        if dependencies is None or not dependencies.lifespans:
            return {}  # nothing depends on them but types of what comes back from a store
        raise HookError(
            f"the annotations of {name!r} cannot be read: {describe(error)}",
            remedy="annotate with types that its module imports outside of TYPE_CHECKING",
        ) from error
