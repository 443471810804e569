"""Uses a store on NATS until it dies at a failpoint, and says what was acknowledged.

    ERGON_FAILPOINTS=boundary.append.before=kill@7 python crash_child.py URL

Run again on what is left, it does the same from the start and goes on where it got to.
"""

from __future__ import annotations

import sys
from typing import Any

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.ports.factstore import OUTBOUND
from tests.boundary.sqlite.crash_child import append, objects, read, receive, say

ROUNDS = 5


def main(url: str) -> None:
    """Everything, several times."""
    store: Any = NatsFactStore(url, zone="plant-a")
    store.create_consumer("reader", OUTBOUND)
    for number in range(ROUNDS):
        append(store, number, objects(store, number))
        receive(store, number)
        read(store)
    store.close()
    say("end")


if __name__ == "__main__":
    main(sys.argv[1])
