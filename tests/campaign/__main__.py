"""The kill campaign, one line of JSON per store; the exit code is 1 when a promise was broken.

python -m tests.campaign --kills 1000                   on every store
python -m tests.campaign --kills 100 --store jobs-redis --seed 7
python -m tests.campaign --kills 1000 --store flows-sqlite   over 100,000 steps of flows
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.campaign.campaign import Campaign
from tests.campaign.facts import FactCampaign
from tests.campaign.flows import FLOW_FAULTS, FlowCampaign
from tests.campaign.jobs import JobCampaign
from tests.campaign.report import end_when_told, report
from tests.differential.engines import STORES

SEED = 20_261
CAMPAIGNS: dict[str, type[Campaign]] = {
    "jobs": JobCampaign,
    "facts": FactCampaign,
    "flows": FlowCampaign,
}
SUBJECTS = (*STORES, "flows-sqlite", "flows-postgres", "flows-redis")
"""What is killed at work, and on which engine."""
FAULTS = (
    "lost",
    "completed_twice",
    "strangers",
    "claimed_twice",
    "never_ran",
    "ran_undelivered",
    "doubled",
    "moved",
    "flaws",
    "unread",
    "settled_twice",
)
"""What must be zero, where a campaign tells of it."""


def campaign(store: str, kills: int, *, seed: int = SEED, seconds: float = 900.0) -> dict[str, Any]:
    """One campaign on one store; what came of it."""
    what, _, engine = store.partition("-")
    with tempfile.TemporaryDirectory(prefix="ergon-campaign-") as folder:
        return CAMPAIGNS[what](engine, Path(folder), seed).run(kills, seconds)


def faults(told: dict[str, Any]) -> dict[str, int]:
    """What was broken."""
    return {name: told[name] for name in (*FAULTS, *FLOW_FAULTS) if told.get(name)}


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--store", action="append", choices=SUBJECTS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=1800.0, help="at most, per store")
    given = parser.parse_args()
    end_when_told()
    return report(
        [{"store": store, "seed": given.seed} for store in given.store or SUBJECTS],
        partial(campaign, kills=given.kills, seconds=given.seconds),
        lambda told: bool(faults(told)) or told["kills"] < given.kills,
    )


if __name__ == "__main__":
    sys.exit(main())
