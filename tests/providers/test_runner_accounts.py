"""What a task leaves behind: its budget in the rows, and a letter when all is used up."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.ports.providerstore import KeyClaimResult
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.tasks import TaskEnd
from ergon_framework.testing import VirtualClock
from tests.providers.scripted_tasks import FlakyStore, call, runner
from tests.providers.test_runner import again, letters

pytestmark = [pytest.mark.req("PROVIDERS:celery"), pytest.mark.usefixtures("own_place", "clock")]


@pytest.mark.req("PEF:A-8")
@pytest.mark.parametrize(("own", "budget"), [(60.0, 1000), (0.5, 500)])
def test_the_rows_tell_the_whole_budget(clock: VirtualClock, own: float, budget: int) -> None:
    """Not what the store left of it when the key was claimed; the provider's own if it is less."""

    class SlowStore(FlakyStore):
        def claim(self, *arguments: Any) -> KeyClaimResult:
            clock.sleep(0.25)
            return super().claim(*arguments)

    store = SlowStore()
    run = runner(
        "timeout ok",
        timeout_budget_seconds=1.0,
        provider_options={
            "store": store,
            "timeout_budget_seconds": own,
            "retry_policy": RetryPolicy(base_delay_seconds=0.1),
        },
    )
    ending = run.run(call(correlation_id="c"))
    recorder_of(store).drain()
    found = [row.timeout_budget_ms for row in store.attempts_of("c")]
    assert (ending.end, found) == (TaskEnd.DONE, [budget] * 2)


@pytest.mark.req("PEF:T-7")
@pytest.mark.parametrize(("attempts", "requeues"), [(3, 9), (9, 2)])
def test_what_went_back_as_often_as_it_may_is_buried(attempts: int, requeues: int) -> None:
    """It was retried, though by way of the queue: when that is exhausted, there is a letter."""
    run = runner(
        "crash",
        provider_options={"retry_policy": RetryPolicy(max_attempts=attempts)},
        max_requeues=requeues,
        requeue_on={"internal_error"},
    )
    first, ends = call(), []
    ending = run.run(first)
    while ending.end is TaskEnd.REQUEUE:
        ends.append(ending.end)
        ending = run.run(again(first, ending))
    assert (len(ends), ending.end) == (2, TaskEnd.DEAD)
    [stored] = letters(run)
    assert (stored.letter.attempts, stored.letter.reason_code) == (3, "internal_error")
