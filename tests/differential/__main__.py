"""Random operations against the memory model and a real store: they must answer alike.

python -m tests.differential                          100,000 operations on every store
python -m tests.differential jobs-postgres            the same on one
python -m tests.differential jobs-postgres --seed 17  the life of one seed
python -m tests.differential facts-nats --operations 5000 --first 300
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import count

from tests.differential.engines import STORES, running
from tests.differential.lives import OPERATIONS, live

WHOLE = 100_000


def main() -> int:
    """Run what the arguments say; one line of JSON for each store where all was alike."""
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
    for store in given.store or STORES:
        began = time.monotonic()
        with running(store.partition("-")[2]) as engine:
            done = live(store, engine, count(first), wanted)
        told = {"store": store, "operations": done, "first": first}
        print(json.dumps({**told, "seconds": round(time.monotonic() - began, 1)}), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
