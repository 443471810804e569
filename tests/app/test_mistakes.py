"""What beginners write: each mistake is told where it is made, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.errors import ConfigurationError, ErgonError, JobError, UsageError

pytestmark = pytest.mark.req("JOBS:badinput")


def plain(width: int = 0) -> int:
    """No handler."""
    return width


async def pause(width: int = 0) -> int:
    """No handler either."""
    return width


class Shop:
    """A class with functions that want an object."""

    def sell(self, item: str) -> None:
        """Wants an object."""

    @classmethod
    def shut(cls) -> None:
        """Wants the class."""


class Program:
    """A beginner's program: an App with one handler, a job, and a zone."""

    def __init__(self) -> None:
        # A type checker would tell most of what follows.
        self.app: Any = App("memory://", name="mistakes")
        self.resize: Any = self.app.job("resize")(plain)
        self.job = self.resize.enqueue(1)
        self.step = self.resize.step(80)
        self.zone: Any = self.app.zone("plant")
        self.rates: Any = self.app.provider("rates")
        self.source = MemoryConnector()

    def nested(self, depth: int) -> Any:
        """A chain in a chain in a chain."""
        made = self.step
        for _ in range(depth):
            made = self.app.chain(made)
        return made


Mistake = Callable[[Program], object]
FLOWS: dict[str, tuple[Mistake, str]] = {
    "a function": (lambda p: p.app.chain(plain), r"part 1 .* function plain.*@app\.job above"),
    "a lambda": (lambda p: p.app.chain(lambda: 3), r"part 1 of a chain is a lambda"),
    "a coroutine": (lambda p: p.app.chain(p.step, pause(1)), r"part 2 .* coroutine.*pause\.step"),
    "a call that ran": (
        lambda p: p.app.chain(p.resize(5)),
        r"type int: .*\.step\(\.\.\.\) instead",
    ),
    "a call without a result": (lambda p: p.app.chain(None), r"None: .*\.step\(\.\.\.\) instead"),
    "a method": (lambda p: p.app.chain(p.resize.step), r"method step, .*write plain\.step\("),
    "a signal not called": (
        lambda p: p.app.chain(p.app.wait_for_signal),
        r"method wait_for_signal, .*app\.wait_for_signal\(",
    ),
    "arguments": (lambda p: p.app.chain(p.resize.call(1)), r"call\(\.\.\.\).*handler\.step\("),
    "a job": (lambda p: p.app.chain(p.job), r"job that is enqueued already.*after=\[job\]"),
    "a flow": (lambda p: p.app.chain(p.app.chain(p.step).enqueue()), r"flow that is enqueued"),
    "a result": (lambda p: p.app.chain(p.step, p.step.result), r"part 2 .* the result of a step"),
    "a list": (lambda p: p.app.chain([p.step, p.step]), r"part 1 .* a list.*chain\(\*steps\)"),
    "a list of one": (lambda p: p.app.chain([p.step]), r"part 1 .* a list.*chain\(\*steps\)"),
    "an empty list": (lambda p: p.app.chain([]), r"part 1 of a chain is a list"),
    "an iterator": (lambda p: p.app.chain(iter([p.step])), r"an iterator.*chain\(\*steps\)"),
    "a tuple of a function": (lambda p: p.app.chain((plain, [1])), r"tuple that begins with plain"),
    "a dict of a function": (
        lambda p: p.app.chain({"handler": plain}),
        r"dict whose handler is no",
    ),
    "arguments that are no list": (lambda p: p.app.chain(("resize", 80)), r"args must be a list"),
    "a text as arguments": (lambda p: p.app.chain(("resize", "80")), r"args must be a list"),
    "names that are no dict": (
        lambda p: p.app.chain(("resize", [], [1])),
        r"kwargs must be a dict",
    ),
    "a class": (lambda p: p.app.chain(Shop), r"the class Shop.*handler\.step\("),
    "the app": (lambda p: p.app.chain(p.app), r"type App.*handler\.step\("),
    "nothing": (lambda p: p.app.chain(), r"a chain has no steps.*resize\.step"),
    "options of a step": (lambda p: p.app.chain(p.step, queue="x"), r"'queue'.*\.options\(queue="),
    "options of a flow": (lambda p: p.app.chain(p.step).enqueue(delay=5), r"'delay'.*\.options\("),
    "too deep": (lambda p: p.nested(3000).enqueue(), r"too deeply.*chain\(\*steps\)"),
    "a group of a step": (lambda p: p.app.group(p.step), r"takes a list.* type Step.*group\(\["),
    "a group of a handler": (lambda p: p.app.group(p.resize), r"takes a list.* type JobHandler"),
    "a group of a chain": (
        lambda p: p.app.group(p.app.chain(p.step)),
        r"takes a list.* type Chain",
    ),
    "a group of a text": (lambda p: p.app.group("resize"), r"takes a list.* one text"),
    "a group of a dict": (lambda p: p.app.group({"handler": "resize"}), r"takes a list.* one dict"),
    "a group of a used generator": (
        lambda p: [p.app.group(g) for g in [(each for each in [p.step])] * 2],
        r"generator that was used before.*new one for each group",
    ),
    "a group of a coroutine": (
        lambda p: p.app.group([p.resize.aenqueue(80)]),
        r"a coroutine.*write handler\.step\(",
    ),
    "a group of None": (lambda p: p.app.group(None), r"takes a list.* given None"),
    "a group of two steps": (lambda p: p.app.group(p.step, p.step), r"App\.group: too many.*\(\["),
    "a group of nothing": (lambda p: p.app.group(), r"App\.group: missing.*'parts'"),
    "a list in a group": (lambda p: p.app.group([[p.step]]), r"part 1 of a group is a list"),
    "then is a list": (
        lambda p: p.app.group([p.step], then=[p.step]),
        r"then of a group is a list",
    ),
    "then is a job": (lambda p: p.app.group([p.step], then=p.job), r"then of a group is a job"),
    "a result in a list": (
        lambda p: p.app.chain(p.step, p.resize.step([p.step.result]).without_result()).enqueue(),
        r"the result of a step: it stands alone",
    ),
    "a result outside": (lambda p: p.resize.enqueue(p.step.result), r"the result of a step: it"),
    "a step as an argument": (
        lambda p: p.resize.enqueue(p.step),
        r"a step of a flow, which runs by itself",
    ),
    "after a flow": (
        lambda p: p.resize.options(after=p.app.chain(p.step).enqueue()).enqueue(),
        r"after names a flow.*chain\(flow, resize",
    ),
    "after a list in a list": (
        lambda p: p.resize.options(after=[[p.job]]).enqueue(),
        r"after names a job by list",
    ),
}
DECLARATIONS: dict[str, tuple[Mistake, str]] = {
    "a name twice": (lambda p: p.app.job("a", name="b")(plain), r"App\.job: multiple .* 'name'"),
    "two names": (lambda p: p.app.job("a", "b")(plain), r"App\.job: too many positional"),
    "a number for a name": (lambda p: p.app.job(5), r"app\.job was given 5, .*above a function"),
    "a coroutine for a name": (lambda p: p.app.job(pause(1)), r"app\.job was given <coroutine"),
    "a method": (lambda p: p.app.job(Shop.sell), r"'sell' is a method of a class.*outside of the"),
    "a class method": (lambda p: p.app.job(Shop.__dict__["shut"]), r"'shut' is a method"),
    "options without names": (lambda p: p.resize.options(5), r"JobHandler\.options: too many"),
    "calls that are no list": (lambda p: p.resize.enqueue_many(1, 2), r"enqueue_many\(\[\(80,\)"),
    "cron by name": (
        lambda p: p.app.schedule(cron="* * * * *"),
        r"no option 'cron'.*@app\.schedule\(",
    ),
    "a zone by another name": (lambda p: p.app.schedule("* * * * *", tz="UTC"), r"timezone="),
    "seconds": (lambda p: p.app.schedule(seconds=5), r"write every="),
    "a name before the cron line": (
        lambda p: p.app.schedule("sweep", every=60)(plain),
        r"both cron 'sweep' and every 60.*name='sweep'",
    ),
    "two texts": (lambda p: p.app.schedule("sweep", "* * * * *"), r"App\.schedule: too many"),
    "a consumer of nothing": (lambda p: p.app.consumer(), r"App\.consumer: missing .*connector"),
    "a source by name": (lambda p: p.app.consumer(source=p.source), r"App\.consumer: .*'source'"),
    "a consumer of a zone": (
        lambda p: p.app.consumer(p.zone),
        r"<zone 'plant'> itself.*zone\.facts",
    ),
    "a consumer that is a method": (
        lambda p: p.app.consumer(p.source)(Shop.sell),
        r"'sell' is a method of a class.*@app\.consumer",
    ),
    "a provider without a name": (lambda p: p.app.provider(), r"App\.provider: missing"),
    "a provider above a function": (
        lambda p: p.rates(plain),
        r"'rates' was called itself.*@rates\.call",
    ),
    "a provider with middleware": (
        lambda p: p.app.provider("other", middleware=[]),
        r"given middleware, .*@app\.middleware",
    ),
    "a zone without a name": (lambda p: p.app.zone(), r"App\.zone: missing"),
    "an address for a name": (
        lambda p: p.app.zone("https://host:9443"),
        r"address.*Zone\(\"plant\"",
    ),
    "a store of a zone": (lambda p: p.app.zone("x", store="memory://"), r"\[zones\.plant\]"),
    "half a fact": (lambda p: p.zone.publish("WO-1", "released"), r"Zone\.publish: missing.*to="),
    "facts that are one": (lambda p: p.zone.publish_many({"subject": "x"}), r"no list.*\[fact\]"),
    "facts that are none": (lambda p: p.zone.publish_many(5), r"no list of them"),
    "facts for nobody": (lambda p: p.zone.facts(), r"Zone\.facts: missing.*@app\.consumer"),
    "a reader above a function": (lambda p: p.zone.consume("orders"), r"Zone\.consume: missing"),
}


@pytest.mark.parametrize(("mistake", "told"), FLOWS.values(), ids=FLOWS)
def test_flows(mistake: Mistake, told: str) -> None:
    """The place of the mistake, what stands there, and what to write; nothing is stored."""
    program = Program()
    with pytest.raises((JobError, UsageError), match=told):
        mistake(program)


@pytest.mark.parametrize(("mistake", "told"), DECLARATIONS.values(), ids=DECLARATIONS)
def test_declarations(mistake: Mistake, told: str) -> None:
    """Jobs, schedules, consumers, providers and zones say how they are declared."""
    program = Program()
    with pytest.raises(ConfigurationError, match=told):
        mistake(program)


def test_what_python_would_refuse_is_still_a_type_error() -> None:
    """Whoever caught the TypeError of Python goes on to catch it."""
    program = Program()
    for mistake in (FLOWS["a group of a step"][0], DECLARATIONS["a zone without a name"][0]):
        with pytest.raises(TypeError) as caught:
            mistake(program)
        assert isinstance(caught.value, ErgonError)
        assert caught.value.remedy


def test_an_error_inside_a_declared_function_is_its_own() -> None:
    """A TypeError of the program's own code is not taken for a wrong call."""
    app = App("memory://", name="mistakes")
    handler: Any = app.job("resize")(plain)

    class Calls:
        def __iter__(self) -> Any:
            raise TypeError("of the program")

    with pytest.raises(TypeError, match=r"^of the program$"):
        handler.enqueue_many(Calls())


def test_a_name_may_be_named() -> None:
    """``name=`` works for jobs as it does for schedules and consumers."""
    app = App("memory://", name="mistakes")
    assert app.job(name="resize")(plain).name == "resize"


def test_options_beside_a_function_are_not_dropped() -> None:
    """``app.job(function, queue="slow")`` is a decorator call by hand."""
    app: Any = App("memory://", name="mistakes")
    job = app.job(plain, queue="slow").enqueue(1)
    assert app.client.show(job)["queue"] == "slow"


def test_a_step_shows_none_of_its_arguments() -> None:
    """The text of a step is found in logs and errors."""
    step = Program().resize.step("secret")
    assert "secret" not in f"{step!r} {step.result!r}"
    assert "plain" in repr(step) or "resize" in repr(step)


@pytest.mark.parametrize("given", [{"store": "sqlite:///a.db"}, {"confg": "a.toml"}])
def test_an_app_that_is_made_wrongly_shows_how_it_is_made(given: dict[str, str]) -> None:
    """Its store is what most programs name first, and everybody calls it something else."""
    made: Any = App
    with pytest.raises(UsageError, match=r"App\.__init__: got an unexpected keyword") as caught:
        made(**given)
    assert 'App("postgresql://host/name")' in str(caught.value.remedy)
    with pytest.raises(TypeError):
        made("sqlite:///a.db", "ergon.toml")
