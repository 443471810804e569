"""Every field of a policy is enforced: one scene per field, which goes otherwise without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ergon_framework.connector.transaction import Transaction
from ergon_framework.errors import Snooze
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import Supply, by_hand, consumer, final_report, nap, now, producer
from tests.engine.colours import Colour, Outcome, consume, produce
from tests.engine.test_settlement import Settling

Scene = Callable[[Colour, dict[str, Any]], Any]
NOT_FOR_THE_ENGINE = {
    "min", "max", "min_size", "max_size",  # bounds of their neighbours, checked when it is made
    "interval", "name",  # reserved by RFC-003, and for the operator's eyes
}  # fmt: skip
SLOW, HANGS = Takes(1.0), Takes(1000.0)
ONE_SLOW = {"t1": Takes(10.0), "t2": SLOW}
TWO = {"loop.concurrency.value": 2, "loop.batch.size": 2}
IDLE = {
    "loop.streaming": True,
    "loop.timeout": 30.0,
    "loop.empty_queue.backoff": 1.0,
    "loop.empty_queue.backoff_multiplier": 3.0,
    "loop.empty_queue.backoff_cap": 5.0,
}
WAITING = {"max_attempts": 4, "backoff": 1.0, "backoff_multiplier": 3.0, "backoff_cap": 5.0}
RETRIES: dict[str, tuple[Any, dict[str, Any], list[float]]] = {
    "max_attempts": (3, {}, [0.0, 0.0, 0.0]),
    "timeout": (5.0, {"max_attempts": 2}, [0.0, 5.0]),
    "backoff": (2.0, WAITING, [0.0, 2.0, 7.0, 12.0]),
    "backoff_multiplier": (4.0, WAITING, [0.0, 1.0, 5.0, 10.0]),
    "backoff_cap": (2.0, WAITING, [0.0, 1.0, 3.0, 5.0]),
}


@dataclass
class Case:
    """A field, a value for it, a scene, and what comes of the scene with that value."""

    path: str
    value: Any
    scene: Scene
    expected: Any
    base: dict[str, Any] = field(default_factory=dict)
    colours: tuple[Colour, ...] = ("sync", "async")


def policy_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A policy from paths and values."""
    shape: dict[str, Any] = {}
    for path, value in fields.items():
        inner = shape
        *way, last = path.split(".")
        for step in way:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return shape


def paths_of(shape: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """All fields that an engine has to obey."""
    for name, value in shape.items():
        if isinstance(value, Mapping) and name != "extra":
            yield from paths_of(value, f"{prefix}{name}.")
        elif name not in NOT_FOR_THE_ENGINE:
            yield f"{prefix}{name}"


# ---- scenes -------------------------------------------------------------------------------------


def began(**hooks: Any) -> Scene:
    """When the transactions of a consumer began, two in the first batch and one in the second."""
    first = next(iter(hooks))

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        source = [transactions(2), transactions(1, "u")]
        return consume(colour, source, policy, **hooks).times(first)

    return scene


def made(**hooks: Any) -> Scene:
    """When the transactions of a producer began, three in all."""
    first = next(iter(hooks))
    return lambda colour, policy: produce(colour, transactions(3), policy, **hooks).times(first)


def asked(colour: Colour, policy: dict[str, Any]) -> Any:
    """What the source was asked for."""
    source = ScriptedConnector()
    consume(colour, source, policy)
    return source.fetches


def chosen(colour: Colour, policy: dict[str, Any]) -> Any:
    """How often each of two connectors was read."""
    sources = {"one": ScriptedConnector(), "other": ScriptedConnector()}
    task = consumer(colour, None, process=nothing)
    task.connectors = sources
    consume(colour, None, policy, task=task)
    return [len(each.fetches) for each in sources.values()]


def later(colour: Colour, policy: dict[str, Any]) -> Any:
    """How many of a source's transactions are worked on that come after an empty fetch."""
    return int(final_report(consume(colour, [None, transactions(2)], policy)))


def stopped(role: str) -> Scene:
    """How long a call lasts that is asked to stop while its hook hangs."""

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        scenes: list[Outcome] = []

        async def work(_transaction: Any) -> None:
            scenes[0].task.request_stop()
            await nap(1000.0)

        if role == "consumer":
            task = consumer(colour, Supply(transactions(1)), process=work)
            outcome = consume(colour, None, policy, task=task, meanwhile=scenes.append)
        else:
            task = producer(colour, produce=work)
            given = transactions(1)
            outcome = produce(colour, given, policy, task=task, meanwhile=scenes.append)
        return final_report(outcome).elapsed

    return scene


def told_late(role: str) -> Scene:
    """When the handler hears of a timeout after 5 s, from a hook that takes 3 s to clean up."""

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        instants: list[float] = []

        async def work(_transaction: Any) -> None:
            try:
                await asyncio.sleep(1000.0)
            finally:
                await asyncio.sleep(3.0)

        async def exception(_transaction: Any, _exc: Any) -> None:
            instants.append(now())

        if role == "consumer":
            source = Supply(transactions(1))
            task = consumer(colour, source, process=work, exception=exception)
            consume(colour, source, policy, task=task)
        else:
            task = producer(colour, produce=work, exception=exception)
            produce(colour, transactions(1), policy, task=task)
        return instants

    return scene


def changed(role: str) -> Scene:
    """What the handler finds in a payload that the first hook has changed."""

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        seen: list[Any] = []

        async def change(transaction: Any) -> None:
            transaction.payload.append(1)

        async def look(transaction: Any, _result: Any) -> None:
            seen.extend(transaction.payload)

        given = [Transaction("t1", [])]
        if role == "consumer":
            task = consumer(colour, Supply(given), process=change, success=look)
            consume(colour, None, policy, task=task)
        else:
            produce(colour, given, policy, task=producer(colour, produce=change, success=look))
        return seen

    return scene


def settled(**trouble: Any) -> Scene:
    """What a source is told about one transaction, and when; and how long the call lasts."""

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        source = Settling([transactions(1)], **trouble)
        report = consume(colour, source, policy).report
        return [(verb, at) for verb, _id, at in source.told], report.elapsed

    return scene


def handed_back(colour: Colour, policy: dict[str, Any]) -> Any:
    """How long a call lasts whose source does not take back what is beyond the limit."""
    source = Settling([transactions(2)], release=1000.0)
    policy.setdefault("loop", {})["limit"] = 1
    return consume(colour, source, policy).report.elapsed


def held(colour: Colour, policy: dict[str, Any]) -> Any:
    """What a source is told of one that is to wait a minute, and how long the call lasts."""
    source = Settling([transactions(1)])
    report = consume(colour, source, policy, process={"t1": [Snooze(60.0), None]}).report
    return [(verb, at) for verb, _id, at in source.told], report.elapsed


def waits(colour: Colour, policy: dict[str, Any]) -> Any:
    """When a source that has nothing is asked for the first four times."""
    instants: list[float] = []

    class Empty:
        async def fetch_transactions_async(self, batch_size: int) -> None:
            instants.append(now())

        def fetch_transactions(self, batch_size: int) -> None:
            instants.append(now())

    consume(colour, None, policy, task=consumer(colour, Empty(), process=nothing))
    return instants[:4]


def fetched(colour: Colour, policy: dict[str, Any]) -> Any:
    """When attempts to fetch begin that fail; with a timeout, when they are given up."""
    instants: list[float] = []
    is_hanging = is_bounded(policy, "fetch")

    class Source:
        async def fetch_transactions_async(self, batch_size: int) -> None:
            instants.append(now())
            if is_hanging:
                await nap(1000.0)
            broken()

        def fetch_transactions(self, batch_size: int) -> None:
            by_hand(self.fetch_transactions_async(batch_size))

    outcome = consume(colour, None, policy, task=consumer(colour, Source(), process=nothing))
    last = final_report(outcome).elapsed
    return [0.0, last / 2] if is_hanging else instants


def is_bounded(policy: dict[str, Any], step: str) -> bool:
    """Whether the attempts of a step have a timeout."""
    return "timeout" in policy.get("steps", {}).get(step, {}).get("retry", {})


def broken() -> None:
    """Fails, each time with an exception of its own."""
    raise OSError("broken")


async def nothing(_transaction: Any) -> None:
    """A hook without any work."""


def tries(role: str, step: str) -> Iterator[Case]:
    """The fields of one step's retry policy."""
    first = "process" if role == "consumer" else "produce"

    def scene(colour: Colour, policy: dict[str, Any]) -> Any:
        if step == "fetch":
            return fetched(colour, policy)
        hooks: dict[str, Any] = {} if step != "exception" else {first: broken}
        hooks[step] = HANGS if is_bounded(policy, step) else broken
        if role == "producer":
            return produce(colour, transactions(1), policy, **hooks).times(step)
        return consume(colour, [transactions(1)], policy, **hooks).times(step)

    def jittered(colour: Colour, policy: dict[str, Any]) -> Any:
        _, *later = scene(colour, policy)
        return [0.5 <= each <= 1.5 and each != 1.0 for each in later]

    at = f"steps.{step}.retry"
    for name, (value, others, expected) in RETRIES.items():
        base = {f"{at}.{other}": each for other, each in others.items() if other != name}
        yield Case(f"{at}.{name}", value, scene, expected, base)
    base = {f"{at}.max_attempts": 2, f"{at}.backoff": 1.0}
    yield Case(f"{at}.jitter", 0.5, jittered, [True], base)


def shared(role: str, first: str, run: Callable[..., Scene]) -> Iterator[Case]:
    """The fields that consumers and producers have in common."""
    slow, hangs = run(**{first: SLOW}), run(**{first: Takes(12.0)})
    expired = run(exception=None, **{first: HANGS})
    step = {f"steps.{first}.retry.timeout": 5.0}
    yield Case("loop.concurrency.value", 2, slow, [0.0, 0.0, 1.0], {"loop.batch.size": 2})
    yield Case("loop.limit", 2, slow, [0.0, 1.0])
    yield Case("loop.timeout", 1.5, slow, [0.0, 1.0])
    yield Case("loop.transaction_timeout", 7.0, expired, [7.0, 14.0, 21.0])
    yield Case("loop.stop_grace", 3.0, stopped(role), 3.0)
    yield Case("loop.cancel_grace", 2.0, told_late(role), [7.0], step, ("async",))
    yield Case("loop.payload_copies", True, changed(role), [])
    yield Case("loop.concurrency.max_abandoned", 1, hangs, [0.0, 12.0, 24.0], step, ("sync",))
    yield Case("loop.concurrency.abandoned", "hold", hangs, [0.0, 12.0, 24.0], step, ("sync",))


CONSUMER = [
    *shared("consumer", "process", began),
    *(
        case
        for step in ("fetch", "process", "success", "exception")
        for case in tries("consumer", step)
    ),
    Case("loop.batch.size", 7, asked, [(7, {})]),
    Case("loop.streaming", True, later, 2, {"loop.timeout": 30.0}),
    Case("loop.empty_queue.backoff", 2.0, waits, [0.0, 2.0, 7.0, 12.0], IDLE),
    Case("loop.empty_queue.backoff_multiplier", 4.0, waits, [0.0, 1.0, 5.0, 10.0], IDLE),
    Case("loop.empty_queue.backoff_cap", 2.0, waits, [0.0, 1.0, 3.0, 5.0], IDLE),
    Case("loop.mode", "continuous", began(process=ONE_SLOW), [0.0, 0.0, 1.0], TWO),
    Case("loop.settlement", "manual", settled(), ([], 0.0)),
    Case("loop.settlement_timeout", 4.0, settled(ack=1000.0), ([("ack", 0.0)], 4.0)),
    Case(
        "loop.settlement_attempts",
        2,
        settled(ack=broken),
        ([("ack", 0.0), ("ack", 0.1)], 0.1),
    ),
    Case("loop.release_grace", 1.5, handed_back, 1.5),
    Case("loop.max_hold", 5.0, held, ([("release", 0.0)], 0.0)),
    Case("steps.fetch.extra", {"queue": "q"}, asked, [(1, {"queue": "q"})]),
    Case("steps.fetch.connector_name", "other", chosen, [0, 1]),
]
PRODUCER = [
    *shared("producer", "produce", made),
    *(case for step in ("produce", "success", "exception") for case in tries("producer", step)),
    Case(
        "loop.batch.size",
        2,
        made(produce=ONE_SLOW),
        [0.0, 0.0, 10.0],
        {"loop.concurrency.value": 2},
    ),
]


def check(case: Case, colour: Colour) -> None:
    """The scene with the field and without it."""
    assert case.scene(colour, policy_of({**case.base, case.path: case.value})) == case.expected
    assert case.scene(colour, policy_of(case.base)) != case.expected


def of_each(cases: list[Case]) -> pytest.MarkDecorator:
    """Each case in the colours for which its field means something."""
    given = [(colour, case) for case in cases for colour in case.colours]
    names = [f"{colour}-{case.path}" for colour, case in given]
    return pytest.mark.parametrize(("colour", "case"), given, ids=names)


@pytest.mark.req("RFC-004:3b", "RFC-004:3h", "RFC-004:6b", "RFC-004:10a")
@of_each(CONSUMER)
def test_a_consumer_obeys_every_field(colour: Colour, case: Case) -> None:
    """To the digit; and without the field the same scene goes otherwise."""
    check(case, colour)


@pytest.mark.req("RFC-005:3b", "RFC-005:3h", "RFC-005:12f")
@of_each(PRODUCER)
def test_a_producer_obeys_every_field(colour: Colour, case: Case) -> None:
    """To the digit; and without the field the same scene goes otherwise."""
    check(case, colour)


@pytest.mark.req("RFC-004:3b", "RFC-005:3b")
def test_no_field_is_left_out() -> None:
    """A field that is added to a policy comes with its scene."""
    for policy, cases in ((ConsumerPolicy(), CONSUMER), (ProducerPolicy(), PRODUCER)):
        assert sorted(case.path for case in cases) == sorted(paths_of(policy.model_dump()))
