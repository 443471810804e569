"""Provider calls as functions: typed results, tenants, what an attempt is given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_type

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from ergon_framework import App
from ergon_framework.core.circuit_breaker import CircuitState
from ergon_framework.errors import (
    Business,
    ConfigurationError,
    Discard,
    HookError,
    Retry,
    Snooze,
    StoreUnavailableError,
    WiringError,
)
from ergon_framework.ports.lifespan import INJECTED, Dependencies
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.ports.unit_of_work import RUNNING, UnitOfWork
from ergon_framework.providers import (
    CircuitBreaker,
    MemoryProviderStore,
    Provider,
    ProviderBadRequestError,
    ProviderCircuitOpenError,
    ProviderConnectionError,
    ProviderDependencyError,
    ProviderExecutionResult,
    ProviderQuotaExceededError,
    ProviderTaskRunner,
    ProviderTimeoutError,
    RetryPolicy,
    Rule,
    TaskCall,
)
from ergon_framework.providers.store_urls import current_store, open_store
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import rows

pytestmark = pytest.mark.usefixtures("clock")


@dataclass
class Rate:
    pair: str
    value: float


class Money(BaseModel):
    amount: int
    currency: str


class LateMoney(Money):
    days: int


class Price(BaseModel):
    amount: int
    currency: str
    days: int


class Quote(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pair: str = Field(alias="Pair")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        """Not sent: the model would refuse it."""
        return len(self.pair)


class Currency(StrEnum):
    EUR = "eur"


class Pool:
    name = "pool"


def pool() -> Iterator[Pool]:
    """A plain lifespan."""
    yield Pool()


# -- calling ---------------------------------------------------------------------------------------


def test_attributes_of_the_function_stay_there() -> None:
    """Libraries put some on functions; a call keeps its own of the same names."""
    rates = Provider("rates", capability="exchange")

    def quote(pair: str) -> Rate:
        return Rate(pair, 1.08)

    for name in ("operation", "provider", "call_options", "request"):
        setattr(quote, name, "mine")
    called = rates.call(quote)
    assert called.operation == "quote"
    assert called.tenant("a")("EURUSD") == Rate("EURUSD", 1.08)


def test_a_function_returns_its_own_type_after_retries() -> None:
    """The operation is its name, the payload its arguments."""
    rates = Provider("rates", capability="exchange")
    seen: list[float] = []

    @rates.call
    def quote(pair: str, *, timeout: float = 10.0) -> Rate:
        seen.append(timeout)
        if len(seen) < 3:
            raise ConnectionResetError("the line broke")
        return Rate(pair, 1.08)

    assert assert_type(quote("eur_usd"), Rate) == Rate("eur_usd", 1.08)
    assert seen == [10.0, 10.0, 10.0]
    result = assert_type(quote.execute("eur_usd"), ProviderExecutionResult)
    assert result.data == {"value": Rate("eur_usd", 1.08)}
    assert [(row.operation, row.tenant_id) for row in rows(rates.base, result.correlation_id)] == [
        ("quote", "default")
    ]


def test_an_async_function_is_awaited(clock: VirtualClock) -> None:
    """Its attempts too; and a plain thread may run it to its end."""
    rates = Provider("rates")
    seen: list[int] = []

    @rates.call(operation="price")
    async def quote(pair: str, amount: int = 1) -> float:
        await asyncio.sleep(0)
        seen.append(amount)
        if len(seen) == 1:
            raise ConnectionResetError("the line broke")
        return 1.08 * amount

    assert assert_type(clock.run(quote("eur_usd", amount=2)), float) == 2.16
    result = clock.run(quote.aexecute("eur_usd"))
    assert (result.success, result.data) == (True, {"value": 1.08})
    assert [row.operation for row in rows(rates.base, result.correlation_id)] == ["price"]


class Asking:
    """Objects that can be called have the colour of their method."""

    async def __call__(self, pair: str) -> float:
        await asyncio.sleep(3600)
        return 1.08


class Ticks:
    """The same of one that yields."""

    def __call__(self, pair: str) -> Iterator[float]:
        yield 1.08


def test_an_object_that_is_called_has_the_colour_of_its_method(clock: VirtualClock) -> None:
    """Its attempts are bounded and counted; one that yields is no call, but a stream."""
    rates = Provider("rates", attempts=1, timeout=5, budget=20)
    assert clock.run(rates.call(Asking()).aexecute("eur_usd")).reason_code == "timeout"
    with pytest.raises(HookError, match=r"write @rates\.stream above it"):
        rates.call(Ticks())
    assert list(rates.stream(Ticks())("eur_usd")) == [1.08]


def test_a_plain_function_that_returns_a_coroutine_has_not_succeeded() -> None:
    """The call would only have begun: no timeout, and no failure that anybody sees."""
    rates = Provider("rates", attempts=3)

    async def fetched() -> float:
        return 1.08

    @rates.call
    def quote() -> Any:
        return fetched()

    result = quote.execute()
    assert (result.success, result.attempts, result.reason_code) == (False, 1, "internal_error")
    assert "returned a coroutine, which nobody awaits" in str(result.error)


def test_both_colours_may_be_called_from_the_other_side() -> None:
    """A plain function on a thread, an async one on an event loop of its own."""
    rates = Provider("rates")
    threads: list[threading.Thread] = []

    @rates.call
    def plain() -> int:
        threads.append(threading.current_thread())
        return 1

    @rates.call
    async def coloured() -> int:
        return 2

    result = asyncio.run(plain.aexecute())
    assert (plain.value_of(result), coloured.value_of(coloured.execute())) == (1, 2)
    assert threads != [threading.current_thread()]


def test_a_failure_is_raised_and_a_full_result_tells_it() -> None:
    """As the canonical error, with what the client raised as its cause."""
    rates = Provider("rates", attempts=2, backoff=0.1)

    @rates.call
    def quote() -> int:
        raise ConnectionRefusedError("nobody is there")

    with pytest.raises(ProviderConnectionError) as failed:
        quote()
    assert isinstance(failed.value.__cause__, ConnectionRefusedError)
    result = quote.execute()
    assert (result.success, result.attempts, result.reason_code) == (False, 2, "connection_error")


def test_rules_say_what_the_exceptions_of_a_client_mean() -> None:
    """As ``error_rules`` of a class do."""

    class ClosedError(Exception): ...

    rates = Provider("rates", errors=[Rule(ClosedError, "dependency_unavailable")], attempts=1)

    @rates.call
    def quote() -> int:
        raise ClosedError

    with pytest.raises(ProviderDependencyError):
        quote()


# -- options ---------------------------------------------------------------------------------------


def test_tenants_have_quotas_of_their_own() -> None:
    """And records: a campaign is among them."""
    rates = Provider("rates", quota="1/day", tenant="house")

    @rates.call
    def quote() -> int:
        return 1

    acme = quote.tenant("acme").campaign("spring")
    assert [quote(), acme()] == [1, 1]
    for used_up in (quote, acme):
        with pytest.raises(ProviderQuotaExceededError):
            used_up()
    [house], [health] = rates.health(), rates.health("acme")
    assert (house.key.tenant_id, health.key.tenant_id) == ("house", "acme")
    result = acme.options(correlation_id="mine").execute()
    [row] = rows(rates.base, "mine")
    assert (row.campaign_id, row.tenant_id, result.reason_code) == (
        "spring",
        "acme",
        "quota_exhausted",
    )


def test_an_attempt_is_told_the_smallest_of_all_bounds(clock: VirtualClock) -> None:
    """The provider's timeout, the function's, the call's, and what is left of the budget."""
    rates = Provider("rates", timeout=20, budget=30)

    @rates.call
    def plain(*, timeout: float) -> float:
        return timeout

    @rates.call
    def own(factor: int = 1, *, timeout: float = 7.0) -> float:
        return timeout * factor

    @rates.call(timeout=5)
    def declared(*, timeout: float) -> float:
        return timeout

    @rates.call
    async def later(*, timeout: float) -> float:  # noqa: ASYNC109 - it is told, and need not wait
        await asyncio.sleep(1)
        return timeout

    assert assert_type(plain(), float) == 20
    assert [own(), own(2), own(timeout=3), own(timeout=99)] == [7, 14, 3, 20]
    assert [declared(), declared.options(timeout=2)(), plain.options(budget=4)()] == [5, 2, 4]
    assert clock.run(later()) == 20
    with pytest.raises(ProviderTimeoutError):
        clock.run(later.options(timeout=0.5, attempts=1)())


def test_fewer_attempts_for_one_call() -> None:
    """Not more than the provider makes."""
    rates = Provider("rates", attempts=3)

    @rates.call
    def quote() -> int:
        raise ConnectionResetError

    assert quote.options(attempts=1).execute().attempts == 1
    with pytest.raises(ConfigurationError, match=r"attempts=4 is more .* Provider\('rates', att"):
        quote.options(attempts=4)
    with pytest.raises(ConfigurationError, match=r"no option 'queue'.*tenant"):
        quote.options(queue="slow")  # type: ignore[call-arg]


def test_both_colours_share_the_circuit_and_the_quota(clock: VirtualClock) -> None:
    """What plain calls found out, async ones know, and the other way round."""
    breaker = CircuitBreaker(failure_threshold=2)
    rates = Provider("rates", quota="3/day", attempts=1, circuit_breaker=breaker)

    @rates.call
    def plain(*, broken: bool) -> int:
        if broken:
            raise ConnectionResetError
        return 1

    @rates.call
    async def coloured(*, broken: bool) -> int:
        if broken:
            raise ConnectionResetError
        return 2

    assert plain(broken=False) + clock.run(coloured(broken=False)) == 3
    clock.run(coloured.aexecute(broken=True))
    with pytest.raises(ProviderQuotaExceededError):
        plain(broken=False)
    other, same = plain.tenant("b"), coloured.tenant("b")
    other.execute(broken=True)
    clock.run(same.aexecute(broken=True))
    assert breaker.state is CircuitState.OPEN
    with pytest.raises(ProviderCircuitOpenError):
        other(broken=False)
    with pytest.raises(ProviderCircuitOpenError):
        clock.run(same(broken=False))


def test_nothing_is_opened_before_the_first_call() -> None:
    """A store may be named by a function, which is asked once."""
    asked: list[str] = []

    def store() -> MemoryProviderStore:
        asked.append("store")
        return MemoryProviderStore()

    rates = Provider("rates", store=store)

    @rates.call
    def quote() -> int:
        return 1

    with rates:
        pass
    assert asked == []
    with rates:
        assert [quote(), quote()] == [1, 1]
    assert asked == ["store"]


def quote_of(app: App) -> Callable[[], int]:
    """A call of a provider of this App, recorded as ``mine``."""
    rates = app.provider("rates")

    @rates.call
    def quote() -> int:
        return 1

    return quote.options(correlation_id="mine")


def recorder_threads() -> int:
    """Threads of this process that write rows of calls."""
    return sum(each.name == "ergon-recorder" for each in threading.enumerate())


def test_the_last_app_that_closes_ends_the_store_of_its_calls(tmp_path: Path) -> None:
    """With its thread and its files; another App on the same URL goes on until then."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    before = recorder_threads()
    first, second = App(url, name="first"), App(url, name="second")
    quote, other = quote_of(first), quote_of(second)
    quote()
    other()
    store = current_store(url)
    first.close()
    assert current_store(url) is store
    other()
    second.close()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        store.attempts_of("mine")
    assert recorder_threads() == before
    assert quote() == 1  # the next call opens it again
    first.close()
    with closing(open_store(url)) as found:
        assert len(found.attempts_of("mine")) == 4
    assert recorder_threads() == before


def test_a_store_that_was_handed_out_stays_open(tmp_path: Path) -> None:
    """Whoever took it from a provider, or opened it by its URL, closes it."""
    first, second = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "second"))
    rates, others = Provider("rates", store=first), Provider("rates", store=second)
    opened, taken = open_store(first), rates.base.store
    assert opened is taken
    handed = others.store
    for provider in (rates, others):
        provider.close()
    for store in (opened, handed):
        assert store.attempts_of("mine") == []  # it answers
        store.close()


def test_what_is_in_memory_outlives_a_closed_app() -> None:
    """Closing the store would lose it."""
    with App("memory://", name="first") as app:
        quote_of(app)()
    with closing(open_store("memory://")) as store:
        assert len(store.attempts_of("mine")) == 1


# -- arguments and results -------------------------------------------------------------------------


def test_arguments_are_checked_as_those_of_a_function_are() -> None:
    """And as those of a payload: what JSON cannot say is refused before anything is taken."""
    rates = Provider("rates", quota="5/day")

    @rates.call
    def quote(pair: str, *, amount: float = 1.0, **more: Any) -> list[Any]:
        return [pair, amount, more]

    assert quote("a", amount=2.0, side="buy") == ["a", 2.0, {"side": "buy"}]
    with pytest.raises(TypeError, match=r"quote\(\) missing a required argument: 'pair'"):
        quote()  # type: ignore[call-arg]
    with pytest.raises(ProviderBadRequestError, match="cannot be written as JSON"):
        quote("a", amount=float("nan"))
    with pytest.raises(ProviderBadRequestError, match="cannot be written as JSON"):
        quote("a", side=object())
    [health] = rates.health()
    assert health.account is not None
    assert health.account.used == 1


def test_each_attempt_gets_the_arguments_as_they_were_given() -> None:
    """Whatever the attempt before did with them."""
    rates = Provider("rates")
    seen: list[list[int]] = []

    @rates.call
    def send(lines: list[int]) -> int:
        seen.append(list(lines))
        lines.append(0)
        if len(seen) == 1:
            raise ConnectionResetError
        return len(lines)

    given = [1, 2]
    assert (send(given), seen) == (3, [[1, 2], [1, 2]])


@pytest.mark.parametrize(
    "value",
    [1.5, "text", None, [1], {"a": 1}, {}, {"value": 5}, {"value": 5, "b": 6}, Rate("x", 1)],
)
def test_every_result_comes_back_as_it_was(value: Any) -> None:
    """Also a dict that looks like a wrapped one."""
    rates = Provider("rates")

    @rates.call
    def give() -> Any:
        return value

    assert give() == value
    assert isinstance(give.execute().data, dict)


@pytest.mark.usefixtures("own_place")
def test_a_result_that_was_kept_under_a_key_has_its_type_again() -> None:
    """A task that is delivered twice calls once."""
    rates = Provider("rates")
    calls: list[object] = []

    @rates.call
    def convert(money: Money, to: Currency) -> list[Money]:
        calls.append((money, to))
        return [money, Money(amount=2, currency=to)]

    @rates.call
    def rate(pair: str) -> Rate:
        calls.append(pair)
        return Rate(pair, 1.08)

    runner = ProviderTaskRunner(rates.base, task_name="rates")

    def twice(operation: str, payload: dict[str, Any]) -> list[ProviderExecutionResult]:
        call = TaskCall("acme", None, operation, payload, idempotency_key=operation)
        return [runner.run(call).result for _ in range(2)]

    first, again = twice("convert", {"money": {"amount": 1, "currency": "eur"}, "to": "eur"})
    expected = [Money(amount=1, currency="eur"), Money(amount=2, currency="eur")]
    assert (first.replayed, again.replayed) == (False, True)
    assert convert.value_of(first) == convert.value_of(again) == expected
    first, again = twice("rate", {"pair": "eur_usd"})
    assert again.replayed
    assert rate.value_of(first) == rate.value_of(again) == Rate("eur_usd", 1.08)
    assert calls == [(Money(amount=1, currency="eur"), Currency.EUR), "eur_usd"]


def test_models_may_be_arguments_and_results() -> None:
    """Of pydantic, which a payload has as JSON."""
    rates = Provider("rates")

    @rates.call
    def double(money: Money) -> Money:
        return Money(amount=money.amount * 2, currency=money.currency)

    assert double(Money(amount=2, currency="eur")) == Money(amount=4, currency="eur")
    result = double.execute(Money(amount=2, currency="eur"))
    assert result.data == {"value": {"amount": 4, "currency": "eur"}}


def test_models_are_read_under_the_names_that_they_are_written_under() -> None:
    """Aliases, and fields that a model computes and would refuse itself."""
    rates = Provider("rates")

    @rates.call
    def double(quote: Quote, **more: Money) -> Quote:
        return Quote(Pair=quote.pair * 2 + "".join(more))

    assert double(Quote(Pair="a")) == Quote(Pair="aa")
    assert double(Quote(Pair="a"), b=Money(amount=1, currency="eur")) == Quote(Pair="aab")


@pytest.mark.parametrize("changed", [LateMoney, Price])
def test_a_model_that_attempts_would_get_as_another_value_is_refused(
    changed: type[BaseModel],
) -> None:
    """A payload is JSON: what a subclass adds, or another class has, would be lost unseen."""
    rates = Provider("rates", quota="5/day")
    seen: list[Any] = []

    @rates.call
    def pay(money: Money, *, others: list[Money] = [], **more: Money) -> None:  # noqa: B006
        seen.append((money, others, more))

    fine: Any = Money(amount=1, currency="eur")
    wrong: Any = changed(amount=1, currency="eur", days=3)
    for given in (
        {"money": wrong},
        {"money": fine, "others": [fine, wrong]},
        {"money": fine, "x": wrong},
    ):
        with pytest.raises(ProviderBadRequestError, match="would not come back") as raised:
            pay(**given)
        assert raised.value.never_sent
        assert "as it is declared" in raised.value.remedy
    assert not seen
    pay(fine, others=[fine, {"amount": 1, "currency": "eur"}], x=fine)  # type: ignore[list-item]
    assert seen == [(fine, [fine, fine], {"x": fine})]


# -- what handlers raise ---------------------------------------------------------------------------


def raising(*steps: Exception | None, **options: Any) -> Provider:
    """A provider whose operation ``do`` raises one after the other."""
    provider = Provider("rates", **options)
    left = iter(steps)

    @provider.call
    def do() -> int:
        step = next(left)
        if step is not None:
            raise step
        return 1

    return provider


def run(provider: Provider) -> ProviderExecutionResult:
    """One call of ``do``."""
    return provider.base.execute(tenant_id="default", operation="do")


def test_business_ends_a_call_as_a_bad_request() -> None:
    """It says nothing against the provider, and is not tried again."""
    breaker = CircuitBreaker(failure_threshold=1)
    provider = raising(Business("no such order"), circuit_breaker=breaker)
    result = run(provider)
    assert (result.reason_code, result.attempts, breaker.state) == (
        "bad_request",
        1,
        CircuitState.CLOSED,
    )
    assert "no such order" in str(result.error)


def test_retry_asks_for_another_attempt(clock: VirtualClock) -> None:
    """After the time that it names, or after the backoff; and not for ever."""
    began_at = clock.now()
    assert run(raising(Retry(after=7), None)).success
    assert clock.now() - began_at >= 7
    result = run(raising(Retry(), Retry("still not"), attempts=2))
    assert (result.reason_code, result.attempts) == ("dependency_unavailable", 2)


def test_snooze_is_a_pause_that_all_callers_keep(clock: VirtualClock) -> None:
    """The call waits if it has the time, and is refused otherwise."""
    began_at = clock.now()
    assert run(raising(Snooze(5), None)).success
    assert clock.now() - began_at >= 5
    provider = raising(Snooze(500), None)
    assert [run(provider).reason_code, run(provider).stop_reason] == ["rate_limited", "cooldown"]


def test_discard_goes_to_whoever_runs_the_job_around_the_call() -> None:
    """As it was raised; the record says why there is no result."""
    rates = Provider("rates")

    @rates.call
    def quote() -> int:
        raise Discard("a newer one has come")

    with pytest.raises(Discard, match="a newer one has come"):
        quote()
    assert quote.execute().reason_code == "bad_request"


# -- what is injected, and what surrounds an attempt -----------------------------------------------


def test_what_a_lifespan_yields_is_injected_by_type() -> None:
    """The caller gives the rest."""
    dependencies = Dependencies()
    dependencies.add(pool)
    rates = Provider("rates", dependencies=dependencies)

    @rates.call
    def quote(pair: str, pool: Pool = INJECTED) -> str:
        return f"{pool.name} {pair}"

    with rates:
        assert quote("eur") == "pool eur"
    result = quote.execute("eur")
    assert result.error is not None
    assert isinstance(result.error.__cause__, WiringError)
    dependencies.overrides[Pool] = fake = Pool()
    fake.name = "fake"
    assert quote("eur") == "fake eur"


def test_async_lifespans_are_opened_for_an_event_loop() -> None:
    """And closed in it."""
    events: list[str] = []

    async def apool() -> AsyncIterator[Pool]:
        events.append("open")
        yield Pool()
        events.append("close")

    dependencies = Dependencies()
    dependencies.add(apool)
    rates = Provider("rates", dependencies=dependencies)

    @rates.call
    async def quote(pool: Pool) -> str:
        return pool.name

    async def run() -> ProviderExecutionResult:
        async with rates:
            return await quote.aexecute()  # type: ignore[call-arg]

    assert asyncio.run(run()).data == {"value": "pool"}
    assert events == ["open", "close"]


def test_middleware_surrounds_each_attempt(clock: VirtualClock) -> None:
    """It sees which attempt that is, may fail it, and its generator form serves both colours."""
    stack = MiddlewareStack()
    seen: list[tuple[str, str, int]] = []

    @stack.add
    def watched(unit: Any) -> Iterator[None]:
        seen.append((unit.kind, unit.name, unit.attempt))
        yield

    rates = Provider("rates", middleware=stack)
    steps = iter([ConnectionResetError(), None, None])

    def do() -> int:
        step = next(steps)
        if step is not None:
            raise step
        return 1

    plain = rates.call(operation="plain")(do)

    @rates.call
    async def coloured() -> int:
        return do()

    assert (plain(), clock.run(coloured())) == (1, 1)
    assert seen == [
        ("provider", "rates.plain", 1),
        ("provider", "rates.plain", 2),
        ("provider", "rates.coloured", 1),
    ]


def test_middleware_of_the_other_colour_is_refused_at_the_first_call() -> None:
    """With what to do."""
    stack = MiddlewareStack()

    async def limited(unit: Any, call_next: Any) -> Any:
        return await call_next()

    stack.add(limited)
    rates = Provider("rates", middleware=stack)

    @rates.call
    def quote() -> int:
        return 1

    result = quote.execute()
    assert result.error is not None
    assert isinstance(result.error.__cause__, HookError)


# -- inside a job ----------------------------------------------------------------------------------


class RunningJob:
    """A job that is tried again as a whole."""

    def unit_of_work(self) -> UnitOfWork:
        """What code below it is told."""
        return UnitOfWork("job", "job-1", "sweep", correlation_id="order-7")


@pytest.fixture
def inside_a_job() -> Iterator[None]:
    """The test runs as a handler does."""
    token = RUNNING.set(RunningJob())
    yield
    RUNNING.reset(token)


@pytest.mark.usefixtures("inside_a_job")
def test_a_call_inside_a_job_belongs_to_it() -> None:
    """It has one attempt, since the job is tried again, and a key for each request."""
    rates = Provider("rates")
    calls: list[str] = []

    @rates.call
    def quote(pair: str) -> int:
        calls.append(pair)
        raise ConnectionResetError

    results = [quote.execute(pair) for pair in ("eur", "eur", "usd")]
    assert [each.correlation_id for each in results] == ["order-7"] * 3
    first, second, third = [str(each.idempotency_key) for each in results]
    assert first == second != third
    assert all(each.startswith("job-1/") for each in (first, third))
    assert calls == ["eur", "eur", "usd"]
    assert quote.options(attempts=2).execute("eur").attempts == 2


@pytest.mark.usefixtures("inside_a_job")
def test_requests_and_streams_inside_a_job_belong_to_it(clock: VirtualClock) -> None:
    """Two requests that differ in their body alone have keys of their own."""
    rates = Provider("rates")
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        return httpx.Response(503)

    @rates.stream(operation="ticks")
    def ticks() -> Iterator[int]:
        sent.append("stream")
        if sent:
            raise ConnectionResetError
        yield 1

    transport = rates.transport(httpx.MockTransport(answer))
    with httpx.Client(transport=transport) as client:
        for body in (b"1", b"2", b"1"):
            client.put("https://rates.example/", content=body)
    with pytest.raises(ProviderConnectionError):
        list(ticks())
    assert sent == ["PUT", "PUT", "PUT", "stream"]
    keys = [row.idempotency_key for row in rows(rates.base, "order-7")]
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3


def test_a_provider_of_an_app_is_given_what_the_worker_of_its_jobs_opened() -> None:
    """And is surrounded by the middleware of the app."""
    app = App("memory://")
    app.lifespan(pool)
    seen: list[str] = []

    @app.middleware("provider")
    def watched(unit: Any) -> Iterator[None]:
        seen.append(unit.name)
        yield

    rates = app.provider("rates", store=MemoryProviderStore())

    @rates.call
    def quote(pair: str, pool: Pool = INJECTED) -> str:
        return f"{pool.name} {pair}"

    @app.job(attempts=1)
    def sweep(pair: str) -> str:
        return quote(pair)

    with app:
        job = sweep.enqueue("eur")
        app.drain()
        assert (job.result(), seen) == ("pool eur", ["rates.quote"])


# -- what is refused where it is declared ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quota": "many/day"}, "quota is refused: 'many/day' is no quota .*quota=.1000/day"),
        ({"quota": "many"}, "quota is refused: 'many' is no quota"),
        ({"quota": "0/day"}, "quota is refused: '0/day' is no quota"),
        ({"quota": "1" * 5000 + "/day"}, "quota is refused: '1111.* is no quota"),
        ({"quota": 1000}, "quota must be a text or a QuotaPolicy, not 1000"),
        ({"attempts": 0}, "attempts must be a whole number of 1 or more, not 0 .*attempts=3"),
        ({"attempts": "3"}, "attempts must be a whole number of 1 or more, not '3'"),
        ({"timeout": 0}, "timeout must be a number above 0, not 0 .*timeout=10.0"),
        ({"timeout": 10**400}, "timeout must be a number above 0, not a number of more than"),
        ({"budget": -1}, "budget must be a number above 0"),
        ({"backoff": -1}, "backoff must be a number of 0 or more"),
        ({"capability": ""}, "capability must be a text of 1 to 80 printable characters"),
        ({"tenant": "*"}, "tenant must not be '\\*'"),
        ({"tenant": "x" * 37}, "tenant must be a text of 1 to 36"),
        ({"store": "work.db"}, "store is refused: .*sqlite:///work.db"),
        ({"store": "redis://h/0"}, "Redis does not keep provider calls"),
        ({"store": b"s3cret"}, "store must be a URL, a store or a function, not bytes"),
        ({"circuit_breaker": True}, "circuit_breaker must be False or a CircuitBreaker, not True"),
        ({"errors": Rule(KeyError, "timeout")}, "errors must be a list of rules"),
        ({"errors": ["timeout"]}, "each must be a Rule, not 'timeout'"),
        ({"retry_policy": {"max_attempts": 2}}, "retry_policy must be a RetryPolicy"),
        ({"isolate": "yes"}, "isolate must be True or False, not 'yes'"),
        ({"quota_unit": "call"}, "quota_unit must be 'attempt' or 'execution', not 'call'"),
        ({"max_lanes": 0.5}, "max_lanes must be a whole number of 1 or more"),
        ({"keep_records_seconds": 0}, "keep_records_seconds must be a number above 0"),
        ({"spill": 5}, "spill must be the path of a folder"),
        ({"clock": 5}, "clock must be a clock"),
        ({"wall": 5}, "wall must be a function"),
        ({"time_out": 5}, r"no option 'time_out'.*timeout for one attempt"),
        ({"attempts": 2, "retry_policy": RetryPolicy()}, "beside a retry_policy"),
    ],
)
def test_wrong_options_are_refused_where_they_are_written(
    options: dict[str, Any], told: str
) -> None:
    """And not at the first call, which may be days later."""
    for declared in (Provider, App("memory://").provider):
        with pytest.raises(ConfigurationError, match=told) as refused:
            declared("rates", **options)
        assert "s3cret" not in str(refused.value)
    wrong: Any = None
    with pytest.raises(ConfigurationError, match="name must be a text of 1 to 80"):
        Provider(wrong)
    with pytest.raises(ConfigurationError, match=r"isolate needs a time.*timeout=10.0"):
        Provider("rates", isolate=True, budget=None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"timeout": -1}, "the timeout of a provider call must be a number above 0, not -1"),
        ({"budget": "5"}, "the budget of a provider call must be a number above 0, not '5'"),
        ({"units": 0}, "the units of a provider call must be a whole number of 1 or more"),
        ({"attempts": 4}, r"attempts=4 is more than the provider 'rates' makes \(3\)"),
        ({"metadata": 5}, "the metadata of a provider call must be a mapping"),
    ],
)
def test_wrong_numbers_of_a_call_are_refused_where_they_are_written(
    changes: dict[str, Any], told: str
) -> None:
    """At the function, and at the options of some calls."""
    rates = Provider("rates")
    fine = rates.call(operation="fine")(lambda: 1)
    ways: list[Callable[[], object]] = [
        lambda: rates.call(**changes)(lambda: 1),
        lambda: fine.options(**changes),
    ]
    for declare in ways:
        with pytest.raises(ConfigurationError, match=told):
            declare()


def test_functions_that_make_no_payload_are_refused() -> None:
    """With the line that would."""
    rates = Provider("rates", budget=None)

    def starred(*pairs: str) -> None: ...
    def positional(pair: str, /) -> None: ...
    def endless(*, timeout: float) -> None: ...
    def patient(*, timeout: float | None) -> None: ...
    def generated() -> Iterator[int]:
        yield 1

    for function, told in (
        (starred, "by position alone"),
        (positional, "by position alone"),
        (endless, "neither timeout nor budget"),
        (generated, r"yields its result .*@rates.stream"),
    ):
        with pytest.raises(HookError, match=told):
            rates.call(function)
    rates.call(patient)
    with pytest.raises(HookError, match=r"'patient' twice.*operation="):
        rates.call(patient)
    with pytest.raises(HookError, match="cannot call 5"):
        rates.call(5)  # type: ignore[call-overload]
