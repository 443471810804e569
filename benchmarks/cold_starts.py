"""Processor time that a process takes until it is ready, beside what others import.

One JSON line per case and contestant goes to standard output, a table to standard error. In each
round everybody is started ``STARTS`` times, and the least counts: whatever disturbs a start makes
it longer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Record
from harness import describe_machine, print_records, print_table

STARTS = 3
LONGEST = 60.0
CELERY = ("importing celery.Celery", ("-c", "from celery import Celery"))
DRAMATIQ = ("importing dramatiq", ("-c", "import dramatiq"))
PYTHON = ("Python itself", ("-c", "pass"))
ERGON = ("-m", "ergon_framework.cli")
CASES: dict[str, tuple[str, ...]] = {
    "ConsumerTask": ("-c", "from ergon_framework import ConsumerTask"),
    "JobClient": ("-c", "from ergon_framework import JobClient"),
    "ergon --help": (*ERGON, "--help"),
    "ergon enqueue": (*ERGON, "enqueue", "noop", "--store", "sqlite:///{folder}/jobs.db"),
}


@dataclass
class Starter:
    """A program, and the seconds of processor time of its starts, a round each."""

    name: str
    arguments: Sequence[str]
    seconds: list[float] = field(default_factory=list)
    skipped: str | None = None

    def take_turn(self, folder: Path) -> None:
        """Start it, unless an earlier start failed."""
        if self.skipped is None:
            try:
                self.seconds.append(min(_started(self.arguments, folder) for _ in range(STARTS)))
            except subprocess.SubprocessError as error:
                self.skipped = type(error).__name__

    def record(self, case: str, ours: Starter) -> Record:
        """Our median, or theirs and the ratio to it."""
        made: Record = {"case": case, "who": self.name}
        if self.skipped is not None:
            return made | {"skipped": self.skipped}
        made |= {
            "cpu_seconds": round(statistics.median(self.seconds), 4),
            "cpu_seconds_spread": [round(min(self.seconds), 4), round(max(self.seconds), 4)],
            "rounds": len(self.seconds),
        }
        if self is not ours and ours.skipped is None:
            ratios = [one / other for one, other in zip(ours.seconds, self.seconds, strict=True)]
            made |= {
                "ratio": round(statistics.median(ratios), 3),
                "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        return made


def main() -> int:
    """Start everybody in turns and show what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant (5)")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--case", action="append", choices=list(CASES), help="this one; repeatable")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    with tempfile.TemporaryDirectory(prefix="cold-starts-") as name:
        folder = Path(name)
        print(json.dumps(describe_machine(folder)), flush=True)
        records: list[Record] = []
        for case in options.case or CASES:
            records += print_records(_race(case, rounds, folder))
    print_table(("seconds", "ratio"), _cells, records)
    return 0


def _race(case: str, rounds: int, folder: Path) -> list[Record]:
    ours = Starter("Ergon", CASES[case])
    everybody = [ours, *(Starter(*each) for each in (CELERY, DRAMATIQ, PYTHON))]
    for number in range(rounds):
        for starter in everybody if number % 2 else reversed(everybody):
            starter.take_turn(folder)
    return [starter.record(case, ours) for starter in everybody]


def _started(arguments: Sequence[str], folder: Path) -> float:
    """Seconds of processor time from the start to the end of one process."""
    command = [sys.executable, *(each.format(folder=folder) for each in arguments)]
    before = _cpu_time()
    subprocess.run(  # noqa: S603 - our own program, or a peer's import
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LONGEST, check=True,
        env=_environment(),
    )  # fmt: skip
    return _cpu_time() - before


def _environment() -> dict[str, str]:
    """Our own sources; and modules stay compiled, which many images of containers forbid."""
    inherited = {name: each for name, each in os.environ.items()
                 if name != "PYTHONDONTWRITEBYTECODE"}  # fmt: skip
    return inherited | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent / "src")}


def _cpu_time() -> float:
    # Not ``os.times``: it counts in hundredths of a second.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cells(record: Record) -> list[str]:
    return [f"{record['cpu_seconds']:.3f}", f"{record['ratio']:.3g}" if "ratio" in record else ""]


if __name__ == "__main__":
    sys.exit(main())
