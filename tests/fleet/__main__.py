"""A server that goes away for a minute: one line of JSON per store and way of going.

python -m tests.fleet                                        every store, stopped and frozen
python -m tests.fleet --outage 60 --store jobs-postgres --how frozen

The exit code is 1 when something was lost or done twice, or somebody had to be started again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.campaign.report import end_when_told, report
from tests.differential.engines import ServerEngine, running
from tests.fleet.fact_outage import fact_outage
from tests.fleet.job_outage import job_outage
from tests.fleet.outages import HOWS

STORES = ("jobs-postgres", "jobs-redis", "facts-postgres", "facts-nats")
"""What is kept, and on which server."""
MINUTE = 60.0
FAULTS = (
    "lost",
    "completed_twice",
    "strangers",
    "held_and_rescued",
    "doubled",
    "moved",
    "flaws",
    "unread",
    "restarted",
)
"""What must be zero, where an outage tells of it."""


def outage(store: str, server: str, seconds: float) -> dict[str, Any]:
    """One outage of one store, with the settings that everybody has; what came of it."""
    began = time.monotonic()
    what, _, name = store.partition("-")
    with (
        tempfile.TemporaryDirectory(prefix="ergon-fleet-") as folder,
        running(name, is_durable=True) as engine,
    ):
        assert isinstance(engine, ServerEngine)
        judge = job_outage if what == "jobs" else fact_outage
        told = judge(engine, Path(folder), seconds, server)
    spent = {"seconds": round(time.monotonic() - began, 1)}
    return {"store": store, "server": server} | told | spent


def faults(told: dict[str, Any]) -> dict[str, int]:
    """What was broken."""
    return {name: told[name] for name in FAULTS if told.get(name)}


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.fleet")
    parser.add_argument("--outage", type=float, default=MINUTE, help="seconds [60]")
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--how", action="append", choices=HOWS)
    given = parser.parse_args()
    wanted = product(given.store or STORES, given.how or HOWS)
    end_when_told()
    return report(
        [{"store": store, "server": how} for store, how in wanted],
        partial(outage, seconds=given.outage),
        lambda told: bool(faults(told)),
    )


if __name__ == "__main__":
    sys.exit(main())
