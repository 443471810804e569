"""What is compared: so many plain jobs, and flows of as many steps, each added by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ergon_framework.jobs import JobClient
from ergon_framework.jobs.flows import Chain

STEPS = 1000
"""Jobs of one call, and steps of one flow."""
CHAIN = 10
"""Steps of one chain, of which a hundred run side by side: each step waits for the one before it,
but as many steps can run at any time as there are chains."""
Numbers = Sequence[int]
"""A number for each job, which its handler marks as run."""


def add_plain(client: JobClient, numbers: Numbers) -> None:
    """Jobs that wait for nobody."""
    client.enqueue_many([("work", [number]) for number in numbers])


def add_group(client: JobClient, numbers: Numbers) -> None:
    """One group, whose last step gets the results of all others."""
    *members, last = numbers
    client.group([("work", [number]) for number in members], then=("work", [last])).enqueue()


def add_chains(client: JobClient, numbers: Numbers) -> None:
    """Chains side by side in one flow, each step of which gets the result of the one before it."""
    client.group([_chain(client, some) for some in _chains(numbers)]).enqueue()


def add_flows(client: JobClient, numbers: Numbers) -> None:
    """The same chains, each a flow of its own in a commit of its own."""
    for some in _chains(numbers):
        _chain(client, some).enqueue()


def add_few(client: JobClient, numbers: Numbers) -> None:
    """Plain jobs, as many in one commit as a chain has steps."""
    for some in _chains(numbers):
        add_plain(client, some)


def _chain(client: JobClient, numbers: Numbers) -> Chain:
    return client.chain(*[("work", [number]) for number in numbers])


def _chains(numbers: Numbers) -> list[Numbers]:
    return [numbers[first : first + CHAIN] for first in range(0, len(numbers), CHAIN)]


Add = Callable[[JobClient, Numbers], None]
KINDS: dict[str, tuple[Add, Add]] = {
    "group": (add_group, add_plain),
    "chains": (add_chains, add_plain),
    "flows": (add_flows, add_few),
}
"""By name: how flows are added, and the plain jobs that they are compared with."""
