"""The ownership model over many seeds: every delivery has one place, whatever fails.

python -m tests.engine                          10,000 seeds for threads and for asyncio
python -m tests.engine async --seeds 500        fewer, with one of them
python -m tests.engine sync --first 4711 --seeds 1
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import sys
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from tests.campaign.report import end_when_told, report
from tests.engine.colours import Colour
from tests.engine.ownership_model import live

WHOLE = 10_000
HANG = 120.0
"""Real seconds after which a seed that has not ended is shown with the stacks of all threads."""


def main() -> int:
    """Play what the arguments say; one line of JSON for each colour."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine")
    parser.add_argument("colour", nargs="*", help="sync, async; both if left out")
    parser.add_argument("--seeds", type=int, default=WHOLE)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    given = parser.parse_args()
    unknown = sorted(set(given.colour) - {"sync", "async"})
    if unknown:
        parser.error(f"there is no colour {unknown[0]}")
    end_when_told()
    logging.getLogger("ergon").addHandler(logging.NullHandler())
    logging.getLogger("ergon").propagate = False  # thousands of planned errors
    threading.excepthook = lambda _about: None
    return report(
        [{"colour": each, "first": given.first} for each in given.colour or ("sync", "async")],
        partial(_played, seeds=given.seeds),
        lambda told: bool(told["broken"]),
    )


def _played(colour: Colour, first: int, seeds: int) -> dict[str, Any]:
    began = time.monotonic()
    seams: Counter[str] = Counter()
    broken: list[str] = []
    for seed in range(first, first + seeds):
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            seams[live(colour, seed)] += 1
        except Exception as error:  # the other seeds are to be judged as well
            broken.append(f"{seed}: {type(error).__name__}: {error}"[:300])
    faulthandler.cancel_dump_traceback_later()
    told = {"colour": colour, "first": first, "seeds": seeds, "seams": dict(sorted(seams.items()))}
    return {**told, "broken": broken[:20], "seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    sys.exit(main())
