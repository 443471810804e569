from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter

import pytest

from ergon_framework.executor import Registry
from tests.executor.link import PATIENCE, Link, in_seconds, request

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:executor")]

ROUNDS = 25
MOMENT = 0.002


def registry_of(kind: str, dice: random.Random) -> Registry:
    """Handlers that end at once or after a moment."""
    registry, never = Registry(), threading.Event()

    def quick() -> None: ...

    def nap() -> None:
        never.wait(dice.random() * MOMENT)

    async def aquick() -> None: ...

    async def anap() -> None:
        await asyncio.sleep(dice.random() * MOMENT)

    for function in {"sync": (quick, nap), "async": (aquick, anap)}.get(
        kind, (quick, nap, aquick, anap)
    ):
        registry.add(function)
    return registry


def send(link: Link, names: list[str], count: int, dice: random.Random) -> None:
    """Send requests in pieces of any size."""
    lines = [
        request(
            dice.choice(names),
            job_id=str(number),
            _deadline=dice.choice([None, in_seconds(PATIENCE), in_seconds(-1)]),
        )
        for number in range(count)
    ]
    rest = memoryview(b"".join(lines))
    while rest:
        rest = rest[os.write(link.input_fd, rest[: dice.randint(1, 5000)]) :]


@pytest.mark.parametrize("kind", ["sync", "async", "mixed"])
@pytest.mark.parametrize("limit", [1, 2, 8, 64])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_every_request_is_answered_once_in_any_order_of_events(
    kind: str, limit: int, seed: int
) -> None:
    """Whether it ends by itself or is stopped in the middle, nothing hangs and nothing doubles."""
    dice = random.Random(f"{kind} {limit} {seed}")  # noqa: S311 - it plays, nobody bets
    registry, count, is_stopped = registry_of(kind, dice), dice.choice([1, 10, 100]), seed % 3 == 0
    with Link(registry, limit) as link:
        sender = threading.Thread(target=send, args=(link, [*registry.names, "no"], count, dice))
        sender.start()
        answers = [link.outcome()["job_id"]]
        if is_stopped:
            link.runtime.stop()
        else:
            answers += [link.outcome()["job_id"] for _ in range(count - 1)]
        sender.join(PATIENCE)
        link.end_input()
        link.wait()
        answers += link.waiting()
    assert link.failure is None
    assert max(Counter(answers).values()) == 1
    assert is_stopped or len(answers) == count
