"""``Provider``: guarded calls of an external service, written as functions.

::

    rates = Provider("rates", capability="exchange", quota="1000/day", timeout=10)


    @rates.call
    def eur_usd(*, timeout: float) -> Rate:
        return Rate(**httpx.get(URL, timeout=timeout).raise_for_status().json())


    eur_usd()  # a Rate, or a ProviderError
    eur_usd.tenant("acme")()

The operation is the name of the function, the payload its arguments. Everything around the call is
``ProviderBase``: retries within a budget, a circuit breaker, a quota, a row per attempt. Nothing of
that is imported, and no store is opened, before the first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

from ergon_framework.core.quota import UNLIMITED
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError, HookError
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.colour import is_async_generator, is_coroutine, is_generator
from ergon_framework.ports.lifespan import Dependencies, DependencyScope, LifespanHooks
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.providers.calls import (
    DEFAULT_TENANT,
    AsyncProviderCall,
    AsyncProviderStream,
    CallChanges,
    CallDecorator,
    CallOptions,
    ProviderCall,
    ProviderStream,
    StreamDecorator,
)
from ergon_framework.providers.declared_options import check_declared_call, check_options
from ergon_framework.providers.signatures import AttemptMiddleware, CallSignature, FunctionAttempt

if TYPE_CHECKING:
    import pathlib

    import httpx

    import ergon_framework.core.provider_call as call_machine
    import ergon_framework.ports.clock as clock_port
    import ergon_framework.ports.providerstore as store_port
    import ergon_framework.providers.circuit_breaker as breakers
    import ergon_framework.providers.decisions as decision_options
    import ergon_framework.providers.function_base as function_bases
    import ergon_framework.providers.mapping as rules
    import ergon_framework.providers.quota as quotas
    import ergon_framework.providers.retry as retries
    from ergon_framework.providers.http_transport import RequestRules
else:
    pathlib = LateModule("pathlib")
    httpx = LateModule("httpx")
    call_machine = LateModule("ergon_framework.core.provider_call")
    clock_port = LateModule("ergon_framework.ports.clock")
    store_port = LateModule("ergon_framework.ports.providerstore")
    breakers = LateModule("ergon_framework.providers.circuit_breaker")
    decision_options = LateModule("ergon_framework.providers.decisions")
    function_bases = LateModule("ergon_framework.providers.function_base")
    rules = LateModule("ergon_framework.providers.mapping")
    quotas = LateModule("ergon_framework.providers.quota")
    retries = LateModule("ergon_framework.providers.retry")


Made = TypeVar("Made")
Base = TypeVar(
    "Base", bound="function_bases.FunctionProvider | function_bases.AsyncFunctionProvider"
)

Store: TypeAlias = (
    "str | store_port.ProviderStore | Callable[[], str | store_port.ProviderStore | None] | None"
)

BUDGET = float(60)
"""Seconds that a whole call may take, as ``ProviderBase`` has it.

Compared by identity, to distinguish the default from an explicit 60.
"""
ATTEMPTS = 3


class MoreProviderOptions(TypedDict, total=False):
    """What ``ProviderBase`` takes beside the options that ``Provider`` names itself."""

    retry_policy: retries.RetryPolicy
    isolate: bool
    durable: bool
    parent_breaker: breakers.CircuitBreaker
    retry_budget: call_machine.RetryBudget
    breaker_scope: Literal["attempt", "execution"]
    quota_unit: Literal["execution", "attempt"]
    quota_fails_open: bool
    decisions: decision_options.DecisionOptions
    default_cooldown_seconds: float
    max_cooldown_seconds: float
    max_lanes: int
    keep_records_seconds: float | None
    spill: str | pathlib.Path
    clock: clock_port.Clock
    wall: Callable[[], float]


class ShortProviderOptions(MoreProviderOptions, total=False):
    """Everything that ``Provider`` takes beside its name, for ``app.provider``."""

    capability: str
    quota: str | quotas.QuotaPolicy
    attempts: int
    backoff: float
    timeout: float
    budget: float | None
    tenant: str
    store: Store
    circuit_breaker: breakers.CircuitBreaker | Literal[False]
    errors: Sequence[rules.Rule]


class OpenedLifespans:
    """The lifespans that a provider opens itself, where no worker has done so."""

    def __init__(self, dependencies: Dependencies | None) -> None:
        self._dependencies = dependencies
        self._scope: DependencyScope | None = None
        self._opened: list[LifespanHooks] = []

    def open(self) -> None:
        """Open the plain ones; after a failure none is open."""
        from ergon_framework.engine.time_limit import open_lifespan

        try:
            for each in self._missing():
                if not each.is_async:
                    open_lifespan(each)
                    self._opened.append(each)
        except BaseException:
            self.close()
            raise

    async def aopen(self) -> None:
        """Open all of them; after a failure none is open."""
        from ergon_framework.engine.time_limit import open_lifespan_async

        try:
            for each in self._missing():
                await open_lifespan_async(each)
                self._opened.append(each)
        except BaseException:
            await self.aclose()
            raise

    def close(self) -> None:
        """Close the plain lifespans, the last one first."""
        from ergon_framework.engine.time_limit import close_lifespan

        while self._opened:
            close_lifespan(self._opened.pop())

    async def aclose(self) -> None:
        """Close all lifespans, async ones included."""
        from ergon_framework.engine.time_limit import close_lifespan_async

        while self._opened:
            await close_lifespan_async(self._opened.pop())

    def _missing(self) -> list[LifespanHooks]:
        known = self._dependencies
        if known is None or self._opened:
            return []
        from ergon_framework.ports.lifespan import DependencyScope

        is_open = [known.is_open(each) for each in known.lifespans]
        self._scope = scope = DependencyScope(known)
        return [hooks for hooks, opened in zip(scope.hooks(), is_open, strict=True) if not opened]


# -- the provider ----------------------------------------------------------------------------------


class Provider:
    """An external service, and the functions that call it.

    Plain and async functions share its circuits, quotas and store.
    """

    def __init__(
        self,
        name: str,
        *,
        capability: str | None = None,
        quota: str | quotas.QuotaPolicy | None = None,
        attempts: int | None = None,
        backoff: float | None = None,
        timeout: float | None = None,
        budget: float | None = BUDGET,
        tenant: str = DEFAULT_TENANT,
        store: Store = None,
        circuit_breaker: breakers.CircuitBreaker | Literal[False] | None = None,
        errors: Sequence[rules.Rule] | None = (),
        middleware: MiddlewareStack | None = None,
        dependencies: Dependencies | None = None,
        settings: Callable[[], Mapping[str, Any]] | None = None,
        **options: Unpack[MoreProviderOptions],
    ) -> None:
        """``capability`` is what it is asked for, and its name unless given.

        ``quota="unlimited"`` lifts one that the settings say; None leaves it to them. ``attempts``
        and ``backoff`` (seconds before the second attempt) make a retry policy. ``timeout`` bounds
        one attempt, ``budget`` the whole call. ``store`` is a URL, a store, or a function that
        gives one at the first call; without it everything is in memory. ``errors`` says what
        exceptions of its client mean. ``settings`` gives further arguments of ``ProviderBase`` at
        the first call; the arguments given here win over them.
        """
        self.name = name
        self.capability = name if capability is None else capability
        self.default_options = CallOptions(tenant=tenant)
        self._timeout, self._budget = timeout, budget
        self._quota = quota
        self._store = store
        self._breaker = circuit_breaker
        self._rules = () if errors is None else errors
        self._retries = (attempts, backoff)
        self._middleware = middleware
        self._dependencies = dependencies
        self._settings = settings
        self._options = {
            name: value
            for name, value in cast("Mapping[str, Any]", options).items()
            if value is not None or name == "keep_records_seconds"  # None: for ever
        }
        self._attempts: dict[str, FunctionAttempt] = {}
        self._lock = threading.RLock()
        self._plain: function_bases.FunctionProvider | None = None
        self._async: function_bases.AsyncFunctionProvider | None = None
        self._opened = OpenedLifespans(dependencies)
        self._check()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    # -- declaring ---------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker says the same where it is written

        def __call__(self, *_: object, **__: object) -> None:
            """A provider is no decorator; what is above a function is one of its methods."""
            raise HookError(
                f"the provider {self.name!r} was called itself",
                remedy=f"write @{self.name}.call above a function, or @{self.name}.stream",
            )

    @property
    def call(self) -> CallDecorator:
        """Makes a function a guarded call: ``@rates.call``, or ``@rates.call(attempts=2)``.

        ``operation`` is its name unless given. The other options are those of
        :meth:`FunctionCall.options`, for all calls of this function.
        """
        return CallDecorator(self._call)

    @property
    def stream(self) -> StreamDecorator:
        """Makes a generator function a guarded stream, with the same options.

        It is tried again until its first item has come. A failure after that ends the stream; the
        timeout and the budget are for the whole of it.
        """
        return StreamDecorator(self._stream)

    def _stream(self, function: Any, operation: str | None, changes: CallChanges) -> Any:
        attempt = self._declared(function, operation, is_stream=True)
        kind = AsyncProviderStream if attempt.is_async else ProviderStream
        return self._added(kind(self, attempt, self._options_of(attempt, changes)), attempt)

    def _call(self, function: Any, operation: str | None, changes: CallChanges) -> Any:
        attempt = self._declared(function, operation, is_stream=False)
        kind = AsyncProviderCall if attempt.is_async else ProviderCall
        return self._added(kind(self, attempt, self._options_of(attempt, changes)), attempt)

    def _added(self, made: Made, attempt: FunctionAttempt) -> Made:
        """Last: a declaration that is refused must not stand in the way of the next one."""
        self._attempts[attempt.operation] = attempt
        return made

    def _declared(
        self, function: Any, operation: str | None, *, is_stream: bool
    ) -> FunctionAttempt:
        if not callable(function):
            raise HookError(
                f"the provider {self.name!r} cannot call {function!r}",
                remedy="put @provider.call above a function",
            )
        yields_async = is_async_generator(function)
        signature = CallSignature(function, self._dependencies)
        if is_stream is not (yields_async or is_generator(function)):
            right, what = ("call", "returns") if is_stream else ("stream", "yields")
            raise HookError(
                f"{signature.name}() {what} its result",
                remedy=f"write @{self.name}.{right} above it",
            )
        if signature.takes_timeout and self._timeout is None and self._budget is None:
            signature.check_timeout_may_be_none()
        check_options(self.name, {"operation": operation})
        name = operation or signature.name
        if name in self._attempts:
            raise HookError(
                f"the provider {self.name!r} has the operation {name!r} twice",
                remedy='name one of them: @provider.call(operation="...")',
            )
        return FunctionAttempt(
            signature,
            self.name,
            name,
            self._middleware,
            is_async=yields_async or is_coroutine(function),
            is_stream=is_stream,
        )

    def _options_of(self, attempt: FunctionAttempt, changes: CallChanges) -> CallOptions:
        check_declared_call(self.name, changes)
        self.check_attempts(changes.get("attempts"))
        own = attempt.signature.own_timeout
        defaults = (
            self.default_options if own is None else replace(self.default_options, timeout=own)
        )
        return defaults.changed(changes)

    # -- clients of httpx --------------------------------------------------------------------------

    def transport(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        operation: Callable[[httpx.Request], str] | None = None,
        retry_methods: Collection[str] | None = None,
        **options: Unpack[CallChanges],
    ) -> httpx.BaseTransport:
        """A transport that guards every request: ``httpx.Client(transport=rates.transport())``.

        ``inner`` sends them, and is ``httpx.HTTPTransport()`` unless given. ``operation`` names a
        request, by default with its method and host. Requests of idempotent methods are tried
        again, and others with an ``Idempotency-Key`` header; ``retry_methods`` names other methods.
        A body that is sent while it is made is never sent twice. The options are those of calls.
        """
        from ergon_framework.providers.http_transport import ProviderTransport

        rules = self._rules_of(operation, retry_methods, options)
        around = AttemptMiddleware(f"{self.name}.http", self._middleware, is_async=False)
        return ProviderTransport(self._own_base, inner, rules, around)

    def async_transport(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        operation: Callable[[httpx.Request], str] | None = None,
        retry_methods: Collection[str] | None = None,
        **options: Unpack[CallChanges],
    ) -> httpx.AsyncBaseTransport:
        """A transport for an ``httpx.AsyncClient``."""
        from ergon_framework.providers.http_transport import AsyncProviderTransport

        rules = self._rules_of(operation, retry_methods, options)
        around = AttemptMiddleware(f"{self.name}.http", self._middleware, is_async=True)
        return AsyncProviderTransport(self._own_async_base, inner, rules, around)

    def _rules_of(
        self,
        operation: Callable[[httpx.Request], str] | None,
        retry_methods: Collection[str] | None,
        changes: CallChanges,
    ) -> RequestRules:
        from ergon_framework.providers.http_transport import IDEMPOTENT, RequestRules

        check_declared_call(self.name, changes)
        self.check_attempts(changes.get("attempts"))
        methods = IDEMPOTENT if retry_methods is None else _methods(retry_methods)
        return RequestRules(self.default_options.changed(changes), operation, methods)

    # -- calling -----------------------------------------------------------------------------------

    @property
    def base(self) -> function_bases.FunctionProvider:
        """The ``ProviderBase`` of its plain functions: for a task runner, or for its health."""
        return self._kept(self._own_base())

    @property
    def async_base(self) -> function_bases.AsyncFunctionProvider:
        """The ``ProviderBase`` of its async functions."""
        return self._kept(self._own_async_base())

    def base_of(
        self, *, is_async: bool
    ) -> function_bases.FunctionProvider | function_bases.AsyncFunctionProvider:
        """The one of a colour, without a lock once it is there; for a call that is made now."""
        found = self._async if is_async else self._plain
        if found is None:
            found = self._own_async_base() if is_async else self._own_base()
        return found

    def open_early(self) -> None:
        """Open its store now, which the first call would do otherwise, in the time of that call.

        The first call still names what is wrong with the store or its settings, and with a function
        of the user's that finds it.
        """
        with suppress(Exception):
            self._own_base()

    def _own_base(self) -> function_bases.FunctionProvider:
        with self._lock:
            if self._plain is None:
                self._plain = self._built()
            return self._plain

    def _own_async_base(self) -> function_bases.AsyncFunctionProvider:
        with self._lock:
            if self._async is None:
                from ergon_framework.providers.function_base import AsyncFunctionProvider

                self._async = AsyncFunctionProvider(self._own_base())
            return self._async

    def _kept(self, base: Base) -> Base:
        """An object handed out to user code, which may use it and its store after this provider is
        closed.
        """
        from ergon_framework.providers.store_urls import keep_store

        keep_store(base.store)
        return base

    @property
    def circuit_breaker(self) -> breakers.CircuitBreaker | None:
        """The breaker; its state is the worst of all tenants'."""
        return self._own_base().circuit_breaker

    @property
    def store(self) -> store_port.ProviderStore:
        """Where its state is kept."""
        return self.base.store

    def health(self, tenant: str | None = None) -> list[store_port.LaneHealth]:
        """How this provider stands for a tenant."""
        return self._own_base().health(tenant or self.default_options.tenant)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until every row so far is written; whether that was so in time."""
        return self._plain is None or self._plain.flush(timeout)

    def close(self) -> None:
        """Write what is on its way, and give back what was taken ahead.

        A store that was opened by its URL is closed when no other provider uses it. Closing twice
        is fine; the next call opens the store again.
        """
        from ergon_framework.providers.store_urls import release_store

        with self._lock:
            plain, self._plain, self._async = self._plain, None, None
        if plain is not None:
            try:
                plain.close()
            finally:
                release_store(plain.store, plain)

    def __enter__(self) -> Self:
        """Open the lifespans that are not open yet, except async ones; see ``async with``."""
        self._opened.open()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.close()
        finally:
            self._opened.close()

    async def __aenter__(self) -> Self:
        """Open the lifespans that are not open yet, those of this event loop included."""
        await self._opened.aopen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        from ergon_framework.providers.threads import offload

        try:
            if self._plain is not None:
                # On a thread: closing waits for the store, and the event loop must not.
                await offload(self.close, self._plain.runtime.steps)
        finally:
            await self._opened.aclose()

    def __repr__(self) -> str:
        return f"Provider({self.name!r}, capability={self.capability!r})"

    # -- building ----------------------------------------------------------------------------------

    def check_attempts(self, attempts: int | None) -> None:
        """Refuse more attempts for one call than the provider makes."""
        if attempts is None:
            return
        check_options(self.name, {"attempts": attempts})
        policy = self._options.get("retry_policy")
        most = self._retries[0] if policy is None else policy.max_attempts
        if attempts <= (most or ATTEMPTS):
            return
        if most is None:  # only who asks for more than usual has the settings read for it
            elsewhere = self._said_elsewhere().get("retry_policy")
            most = ATTEMPTS if elsewhere is None else elsewhere.max_attempts
        if attempts > most:
            raise ConfigurationError(
                f"attempts={attempts} is more than the provider {self.name!r} makes ({most})",
                remedy=f"write Provider({self.name!r}, attempts={attempts})",
            )

    def _check(self) -> None:
        """Refuse what is wrong here, where it is written, and not at the first call."""
        attempts, backoff = self._retries
        tenant = self.default_options.tenant
        check_options(
            self.name,
            {
                "name": self.name or "",
                "capability": self.capability,
                "quota": self._quota,
                "attempts": attempts,
                "backoff": backoff,
                "timeout": self._timeout,
                "budget": self._budget,
                "tenant": None if tenant == DEFAULT_TENANT else tenant or "",
                "store": self._store,
                "circuit_breaker": self._breaker,
                "errors": self._rules,
                "middleware": self._middleware,
                "dependencies": self._dependencies,
                "settings": self._settings,
            },
        )
        unknown = sorted(set(self._options) - set(MoreProviderOptions.__annotations__))
        if unknown:
            raise ConfigurationError(
                f"the provider {self.name!r} has no option {unknown[0]!r}",
                remedy="write timeout for one attempt, budget for the whole call, attempts and"
                f" backoff for retries, or one of {', '.join(MoreProviderOptions.__annotations__)}",
            )
        check_options(self.name, self._options)
        if "retry_policy" in self._options and (attempts, backoff) != (None, None):
            raise ConfigurationError(
                f"the provider {self.name!r} has attempts or backoff beside a retry_policy",
                remedy="write them into the policy: RetryPolicy(max_attempts=5)",
            )
        is_endless = self._timeout is None and self._budget is None and self._settings is None
        if self._options.get("isolate") and is_endless:
            raise ConfigurationError(
                f"the provider {self.name!r}: isolate needs a time after which a call is left",
                remedy="write for example timeout=10.0 beside it",
            )

    def _built(self) -> function_bases.FunctionProvider:
        from ergon_framework.providers.function_base import FunctionProvider

        arguments = self._arguments()
        if not (arguments["timeout_budget_seconds"] or arguments.get("attempt_timeout_seconds")):
            for attempt in self._attempts.values():  # the settings may have taken the bound away
                if attempt.signature.takes_timeout:
                    attempt.signature.check_timeout_may_be_none()
        store = self._store
        arguments["store"] = store() if callable(store) else store
        return FunctionProvider(
            self.name, self.capability, self._attempts, self._rules, **arguments
        )

    def _arguments(self) -> dict[str, Any]:
        """The arguments of ``ProviderBase``: those given in code, then those of the settings."""
        from ergon_framework.providers.quota import QuotaPolicy
        from ergon_framework.providers.retry import RetryPolicy

        elsewhere, quota = self._said_elsewhere(), self._quota
        if quota == UNLIMITED:
            elsewhere, quota = {**elsewhere, "quota": None}, None
        said = {
            "quota": QuotaPolicy.parse(quota) if isinstance(quota, str) else quota,
            "circuit_breaker": self._breaker,
            "attempt_timeout_seconds": self._timeout,
        }
        arguments = {
            "timeout_budget_seconds": BUDGET,
            **elsewhere,
            **self._options,
            **{name: value for name, value in said.items() if value is not None},
        }
        if self._budget is not BUDGET:
            arguments["timeout_budget_seconds"] = self._budget
        attempts, backoff = self._retries
        own = {"max_attempts": attempts, "base_delay_seconds": backoff}
        arguments["retry_policy"] = replace(
            arguments.get("retry_policy") or RetryPolicy(max_attempts=ATTEMPTS),
            **{name: value for name, value in own.items() if value is not None},
        )
        return arguments

    def _said_elsewhere(self) -> Mapping[str, Any]:
        return {} if self._settings is None else self._settings()


def _methods(names: Collection[str]) -> frozenset[str]:
    if isinstance(names, str):
        raise ConfigurationError(
            f"retry_methods is the text {names!r}", remedy=f'write retry_methods={{"{names}"}}'
        )
    return frozenset(each.upper() for each in names)
