"""One scenario, both colours: what most engine tests are written with.

``consume`` and ``produce`` run a scripted task under the virtual clock, with threads or with
asyncio, and answer with everything a test may want to look at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ergon_framework.engine.report import Report
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
from ergon_framework.testing.clock import VirtualClock
from ergon_framework.testing.scripted import (
    AsyncScriptedConsumer,
    AsyncScriptedProducer,
    Happened,
    ScriptedConnector,
    ScriptedConsumer,
    ScriptedProducer,
)

Colour = Literal["sync", "async"]


@dataclass
class Outcome:
    """What came of a scenario."""

    clock: VirtualClock
    task: Any
    connector: Any = None
    report: Report = field(default_factory=Report)
    error: BaseException | None = None

    @property
    def happened(self) -> list[Happened]:
        """Every call of a hook, in order."""
        happened: list[Happened] = self.task.script.happened
        return happened

    def calls(self, hook: str | None = None) -> list[str]:
        """The ids a hook was called with, or all calls as ``hook:id``."""
        calls: list[str] = self.task.script.calls(hook)
        return calls

    def times(self, hook: str) -> list[float]:
        """When a hook was called."""
        return [each.at for each in self.happened if each.hook == hook]


def consume(
    colour: Colour,
    connector: Any,
    policy: ConsumerPolicy | dict[str, Any] | None = None,
    *,
    task: Any = None,
    meanwhile: Callable[[Outcome], None] | None = None,
    **hooks: Any,
) -> Outcome:
    """Consume from a connector, or from a list of fetch answers."""
    if isinstance(connector, list):
        connector = ScriptedConnector(connector)
    kind = ScriptedConsumer if colour == "sync" else AsyncScriptedConsumer
    made = task or kind({"source": connector}, {}, **hooks)
    outcome = Outcome(VirtualClock(), made, connector)
    return _run(colour, outcome, lambda: made.consume_transactions(policy), meanwhile)


def produce(
    colour: Colour,
    transactions: Any,
    policy: ProducerPolicy | dict[str, Any] | None = None,
    *,
    task: Any = None,
    meanwhile: Callable[[Outcome], None] | None = None,
    **hooks: Any,
) -> Outcome:
    """Produce the given transactions."""
    kind = ScriptedProducer if colour == "sync" else AsyncScriptedProducer
    made = task or kind({}, {}, **hooks)
    outcome = Outcome(VirtualClock(), made)
    return _run(colour, outcome, lambda: made.produce_transactions(transactions, policy), meanwhile)


def _run(
    colour: Colour,
    outcome: Outcome,
    call: Callable[[], Any],
    meanwhile: Callable[[Outcome], None] | None,
) -> Outcome:
    if meanwhile is not None:
        meanwhile(outcome)
    clock = outcome.clock
    try:
        if colour == "sync":
            with clock:
                outcome.report = call()
        else:
            outcome.report = clock.run(_awaited(call))
    except BaseException as error:  # handed to the test, KeyboardInterrupt and all
        outcome.error = error
        report = getattr(error, "report", None)
        if report is not None:
            outcome.report = report
    finally:
        clock.advance(1e6)  # whoever still hangs comes back now, so that no test leaves threads
    return outcome


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()


def pause(clock: VirtualClock, seconds: float) -> Any:
    """Spend virtual time inside a hook of either colour: ``await``able or already over."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        clock.sleep(seconds)
        return None
    return asyncio.sleep(seconds)
