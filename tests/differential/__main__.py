"""Random operations against the memory model and a real store: they must answer alike.

python -m tests.differential                          100,000 operations on every store
python -m tests.differential jobs-postgres            the same on one
python -m tests.differential jobs-postgres --seed 17  the life of one seed
python -m tests.differential facts-nats --operations 5000 --first 300
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from itertools import count
from typing import Any

from tests.campaign.report import end_when_told, report
from tests.differential.engines import STORES, running
from tests.differential.lives import OPERATIONS, live

WHOLE = 100_000


def main() -> int:
    """Run what the arguments say; one line of JSON for each store."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("store", nargs="*", help=f"one of {', '.join(STORES)}")
    parser.add_argument("--operations", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seed", type=int, help="this one only")
    given = parser.parse_args()
    unknown = sorted(set(given.store) - set(STORES))
    if unknown:
        parser.error(f"there is no store {unknown[0]}")
    first = given.first if given.seed is None else given.seed
    wanted = given.operations or (WHOLE if given.seed is None else OPERATIONS)
    end_when_told()
    return report(
        [{"store": store, "first": first} for store in given.store or STORES],
        partial(_compared, wanted=wanted),
        lambda _: False,  # where the two differ, that is an error
    )


def _compared(store: str, first: int, wanted: int) -> dict[str, Any]:
    """So many operations on one store; what came of it."""
    began = time.monotonic()
    with running(store.partition("-")[2]) as engine:
        done = live(store, engine, count(first), wanted)
    told = {"store": store, "operations": done, "first": first}
    return told | {"seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    sys.exit(main())
