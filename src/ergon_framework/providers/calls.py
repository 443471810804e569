"""Calls of one function of a provider: their options, and what they give back.

A call is made on behalf of a tenant and within bounds; ``options`` gives the same call with others.
``Provider`` makes these objects of functions.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from ergon_framework.errors import ConfigurationError, Discard
from ergon_framework.providers.declared_options import check_call
from ergon_framework.providers.signatures import FunctionAttempt

if TYPE_CHECKING:
    from ergon_framework.providers.execution import (
        ProviderExecutionContext,
        ProviderExecutionResult,
    )
    from ergon_framework.providers.function_base import AsyncFunctionProvider, FunctionProvider

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

DEFAULT_TENANT = "default"
"""The tenant of calls that name none."""


class Callee(Protocol):
    """What calls need of their provider."""

    name: str

    def base_of(self, *, is_async: bool) -> FunctionProvider | AsyncFunctionProvider:
        """The ``ProviderBase`` for functions of a colour."""

    def check_attempts(self, attempts: int | None) -> None:
        """Refuse more attempts for one call than the provider makes."""

    def close(self) -> None:
        """Release the store. The next call opens it again."""


class CallChanges(TypedDict, total=False):
    """What may differ from one call of a function to the next."""

    tenant: str
    campaign: str | None
    idempotency_key: str | None
    correlation_id: str | None
    timeout: float | None
    budget: float | None
    attempts: int | None
    units: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """On whose behalf a call is made, and within which bounds."""

    tenant: str = DEFAULT_TENANT
    campaign: str | None = None
    idempotency_key: str | None = None
    correlation_id: str | None = None
    timeout: float | None = None
    """Seconds of one attempt; the provider's own timeout is a bound as well."""
    budget: float | None = None
    """Seconds of the whole call, if that is less than the provider's budget."""
    attempts: int | None = None
    """The most attempts, up to those that the provider makes."""
    units: int = 1
    """What the call costs of the quota."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, changes: CallChanges) -> CallOptions:
        """A copy with some options changed."""
        unknown = sorted(set(changes) - set(CallOptions.__dataclass_fields__))
        if unknown:
            raise ConfigurationError(
                f"a provider call has no option {unknown[0]!r}",
                remedy=f"the options are {', '.join(CallOptions.__dataclass_fields__)}",
            )
        check_call(changes)
        return replace(self, **changes)

    def context(self) -> ProviderExecutionContext:
        """The options as the context that ``ProviderBase.execute`` takes."""
        from ergon_framework.providers.execution import ProviderExecutionContext

        return ProviderExecutionContext(
            correlation_id=self.correlation_id,
            idempotency_key=self.idempotency_key,
            timeout_budget_seconds=self.budget,
            units=self.units,
            metadata=self.metadata,
            attempt_timeout_seconds=self.timeout,
            max_attempts=self.attempts,
        )


# -- what the decorators give ----------------------------------------------------------------------


class FunctionCall:
    """One function of a provider, with the options that its calls have."""

    def __init__(self, provider: Callee, attempt: FunctionAttempt, options: CallOptions) -> None:
        self.provider = provider
        self.operation = attempt.operation
        self.signature = attempt.signature
        self.is_async = attempt.is_async
        self.call_options = options
        self._attempt = attempt
        self._context: ProviderExecutionContext | None = None
        # updated=(): attributes of the function, such as one called operation, would replace those
        # of the call.
        function = attempt.signature.function
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=())

    @property
    def function(self) -> Callable[..., Any]:
        """The function as it was written, without anything around it."""
        return self.signature.function

    def tenant(self, tenant_id: str) -> Self:
        """The same call on behalf of a tenant: with its circuit, its quota and its records."""
        return self.options(tenant=tenant_id)

    def campaign(self, campaign_id: str | None) -> Self:
        """The same call as part of a campaign."""
        return self.options(campaign=campaign_id)

    def options(self, **changes: Unpack[CallChanges]) -> Self:
        """The same call with other options."""
        self.provider.check_attempts(changes.get("attempts"))
        return type(self)(self.provider, self._attempt, self.call_options.changed(changes))

    def request(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str | None, str, dict[str, Any], ProviderExecutionContext]:
        """The arguments of ``ProviderBase.execute``, in its order."""
        payload, timeout = self.signature.payload(args, kwargs)
        context, options = self._context, self.call_options
        if context is None:
            self._context = context = options.context()
        if timeout is not None:
            context = replace(context, attempt_timeout_seconds=timeout)
        return options.tenant, options.campaign, self.operation, payload, context

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.provider.name}.{self.operation}>"


class _GuardedFunction(FunctionCall, Generic[P, T]):
    """What plain and async functions have in common: both can be called from either side."""

    def execute(self, *args: P.args, **kwargs: P.kwargs) -> ProviderExecutionResult:
        """Call it and return how that went: a failure is in the result, and not raised.

        An async function is run to its end in this thread.
        """
        tenant, campaign, operation, payload, context = self.request(args, dict(kwargs))
        return self.provider.base_of(is_async=self.is_async).execute(
            tenant_id=tenant,
            campaign_id=campaign,
            operation=operation,
            payload=payload,
            context=context,
        )

    async def aexecute(self, *args: P.args, **kwargs: P.kwargs) -> ProviderExecutionResult:
        """Make the call on asyncio. A plain function runs on a thread."""
        tenant, campaign, operation, payload, context = self.request(args, dict(kwargs))
        return await self.provider.base_of(is_async=self.is_async).aexecute(
            tenant_id=tenant,
            campaign_id=campaign,
            operation=operation,
            payload=payload,
            context=context,
        )

    def value_of(self, result: ProviderExecutionResult) -> T:
        """What the function returned, or the error of the call raised.

        The result may be that of an earlier call, read back under its idempotency key.
        """
        if result.success and result.data is not None:
            value: T = self.signature.result(result.data, is_read=result.replayed)
            return value
        error = result.error
        if error is not None and isinstance(error.__cause__, Discard):
            raise error.__cause__  # not a failure: it ends the job or transaction around the call
        result.unwrap()
        raise AssertionError  # pragma: no cover - unwrap has raised


class ProviderCall(_GuardedFunction[P, T]):
    """A plain function: called, it returns what the function returned, or raises."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The typed result, or a :class:`ProviderError`."""
        return self.value_of(self.execute(*args, **kwargs))


class AsyncProviderCall(_GuardedFunction[P, T]):
    """An async function: awaited, it returns what the function returned, or raises."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The typed result, or a :class:`ProviderError`."""
        return self.value_of(await self.aexecute(*args, **kwargs))


class ProviderStream(FunctionCall, Generic[P, T]):
    """A function that yields: called, it gives an iterator, and the call begins with its use."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        """The items; closing the iterator ends the call."""
        from ergon_framework.providers.pipeline.streaming import END, StreamCall, stream

        runtime = self.provider.base_of(is_async=False).runtime
        first_of = functools.partial(self._attempt.first_of, END)
        request = self.request(args, dict(kwargs))
        return stream(StreamCall(runtime, self._attempt.opens, first_of, request))


class AsyncProviderStream(FunctionCall, Generic[P, T]):
    """A call of an async generator function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        """The items; closing the iterator ends the call."""
        from ergon_framework.providers.pipeline.streaming import END, StreamCall, astream

        runtime = self.provider.base_of(is_async=True).runtime
        first_of = functools.partial(self._attempt.first_of, END)
        request = self.request(args, dict(kwargs))
        return astream(StreamCall(runtime, self._attempt.opens, first_of, request))


class TakesOnlyTimeout(Protocol[T_co]):
    """A function whose caller has nothing to give.

    Types cannot say "the same parameters but for ``timeout``". Calls of such a function are not
    checked; with further parameters, a default for ``timeout`` keeps them all checked.
    """

    def __call__(self, *, timeout: float) -> T_co:
        """Make one attempt."""


Declare = Callable[[Any, str | None, CallChanges], Any]
"""Makes an object of this module of a function, its operation and the options of its calls."""


class _Decorator:
    """What both decorators do: declare a function, or keep options for the one that follows."""

    def __init__(
        self, declare: Declare, operation: str | None = None, changes: CallChanges | None = None
    ) -> None:
        self._declare = declare
        self._operation = operation
        self._changes = changes or CallChanges()

    def _apply(self, function: Any, operation: str | None, options: dict[str, Any]) -> Any:
        name = operation or self._operation
        changes = cast("CallChanges", {**self._changes, **options})
        if function is None:
            return type(self)(self._declare, name, changes)
        return self._declare(function, name, changes)


class CallDecorator(_Decorator):
    """``@provider.call``, and ``@provider.call(...)``, which waits for its function."""

    # mypy: a coroutine function is also a function that returns something; the first match wins.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: TakesOnlyTimeout[Coroutine[Any, Any, T]], /
    ) -> AsyncProviderCall[..., T]: ...
    @overload
    def __call__(self, function: TakesOnlyTimeout[T], /) -> ProviderCall[..., T]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> AsyncProviderCall[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> ProviderCall[P, T]: ...
    @overload
    def __call__(
        self, /, *, operation: str | None = None, **options: Unpack[CallChanges]
    ) -> CallDecorator: ...
    def __call__(
        self, function: Any = None, /, *, operation: str | None = None, **options: Any
    ) -> Any:
        """The call of a function, or a decorator with these options."""
        return self._apply(function, operation, options)


class StreamDecorator(_Decorator):
    """``@provider.stream``, and ``@provider.stream(...)``, which waits for its function."""

    @overload
    def __call__(
        self, function: TakesOnlyTimeout[AsyncIterator[T]], /
    ) -> AsyncProviderStream[..., T]: ...
    @overload
    def __call__(self, function: TakesOnlyTimeout[Iterator[T]], /) -> ProviderStream[..., T]: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> AsyncProviderStream[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> ProviderStream[P, T]: ...
    @overload
    def __call__(
        self, /, *, operation: str | None = None, **options: Unpack[CallChanges]
    ) -> StreamDecorator: ...
    def __call__(
        self, function: Any = None, /, *, operation: str | None = None, **options: Any
    ) -> Any:
        """The stream of a function, or a decorator with these options."""
        return self._apply(function, operation, options)
