"""Compare this checkout with another commit: the same races, turn by turn, on one machine.

Each side runs its own copy of the benchmarks in processes of its own, so that names may differ
between the two. In every round both sides have a turn at a race, next to each other, and the order
changes from round to round. A ratio is this checkout's figure divided by the other's in the same
round, turned over where less is better: above 1 is faster. ``ratio`` is the median over the rounds.
``cpu_ratio`` is the same of the processor time of one unit of work, where a benchmark tells it.

A race has become slower when

- it takes more processor time: ``cpu_ratio`` is below ``--floor``. Other programs on the machine
  hardly move this figure;
- or it takes longer by the clock: ``ratio`` is below ``--floor``. Where no processor time is told,
  that decides alone. Where it is told and has not become more, the race waits longer than before,
  or another program was in the way. A wait shows in nearly every round, so at least four rounds in
  five must be below 1. Otherwise the line says ``noisy``, and more rounds tell.

One JSON line per figure goes to standard output, a table to standard error. The exit code is 1 when
a race has become slower, and 2 when nothing could be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparison import ONLY, Record
from harness import temporary_folder

ROOT = Path(__file__).resolve().parent.parent
OURS = "Ergon"
"""What the names of our contestants begin with; peers are the same on both sides."""
LONGEST = 300.0
"""Seconds after which a turn is given up."""
MORE_IS_BETTER = ("per_second",)
LESS_IS_BETTER = ("us", "p50_ms", "cpu_seconds")
STARTS = 5
"""Processes of one turn of a cold start: one alone says little."""


@dataclass(frozen=True)
class Race:
    """What one turn runs: a benchmark with arguments, or a program that is timed from its start."""

    name: str
    arguments: tuple[str, ...]
    is_cold: bool = False


def _cases(script: str, *names: str, more: str = "") -> list[Race]:
    return [
        Race(
            f"{script}:{name}",
            (f"benchmarks/{script}.py", "--quick", "--case", name, *more.split()),
        )
        for name in names
    ]


NO_PEERS = "--peers="
# Not --quick: within a few thousand jobs, as many as are in flight at once, a worker does little
# else than to start and to end.
_LONG_DRAIN = Race(
    "jobs:drain", ("benchmarks/jobs.py", "--rounds", "1", "--case", "drain", NO_PEERS)
)
RACES = (
    *_cases("engine", "consume-sync", "consume-async", "produce-sync", "produce-async"),
    _LONG_DRAIN,
    *_cases(
        "jobs", "enqueue", "enqueue-threads", "bulk", "latency", "round-trip",
        more=NO_PEERS,
    ),
    *_cases("boundary", "in-process", "socket", "client", "batch", "put", "catch-up"),
    *_cases(
        "providers", "success", "success-async", "retries", "rejection", "persisted", "quota",
        "threads",
    ),
    *_cases("scale", "queue", "append", more=NO_PEERS),
    *_cases("scale", "drain", more=f"{NO_PEERS} --drained 10000"),
    Race("cold:import", ("-c", "import ergon_framework"), is_cold=True),
    Race("cold:version", ("-m", "ergon_framework.cli", "--version"), is_cold=True),
    Race("cold:help", ("-m", "ergon_framework.cli", "worker", "--help"), is_cold=True),
    Race("cold:app", ("-c", "import ergon_framework as e; e.App"), is_cold=True),
    Race("cold:executor", ("-c", "import ergon_framework.executor"), is_cold=True),
)  # fmt: skip

Figure = tuple[str, str, str]
"""Case, contestant, and what was measured of it."""
Measured = tuple[float, float | None]
"""The figure, and the processor time of one unit of work in microseconds, if that is told."""
CPU_TIME = "cpu_us"
SURE = 0.8
"""The part of the rounds that must be slower if processor time says nothing of it."""


@dataclass
class Compared:
    """The ratios of one figure, a round each; those of processor time where both sides tell it."""

    race: str
    figure: Figure
    ratios: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)

    def add(self, ours: Measured, theirs: Measured) -> None:
        """Take the figures of one round."""
        self.ratios.append(_ratio(self.figure, ours[0], theirs[0]))
        if ours[1] and theirs[1]:
            self.cpu_ratios.append(theirs[1] / ours[1])

    def record(self, floor: float) -> Record:
        """What is printed of it."""
        case, who, what = self.figure
        is_below = statistics.median(self.ratios) < floor
        has_more_work = bool(self.cpu_ratios) and statistics.median(self.cpu_ratios) < floor
        slower_rounds = sum(each < 1.0 for each in self.ratios)
        is_sure = not self.cpu_ratios or slower_rounds >= SURE * len(self.ratios)
        is_noisy = is_below and not is_sure and not has_more_work
        made: Record = {
            "race": self.race,
            "case": case,
            "who": who,
            "figure": what,
            **_told("ratio", self.ratios),
            **(_told("cpu_ratio", self.cpu_ratios) if self.cpu_ratios else {}),
            "rounds": len(self.ratios),
            "met": is_noisy or not (is_below or has_more_work),
        }
        return made | ({"noisy": True} if is_noisy else {})


def _told(name: str, ratios: Sequence[float]) -> Record:
    spread = [round(min(ratios), 3), round(max(ratios), 3)]
    return {name: round(statistics.median(ratios), 3), f"{name}_spread": spread}


def main() -> int:
    """Run the races that were asked for, and say which have become slower."""
    options = _options()
    races = [each for each in RACES if _is_wanted(each.name, options.race)]
    if options.list:
        print("\n".join(each.name for each in races))
        return 0
    if not races:
        print(f"no race is called {' or '.join(options.race)}; see --list", file=sys.stderr)
        return 2
    with temporary_folder("bench-check-", options.folder) as folder:
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        problem = _checked_out(options.base, folder / "base")
        if problem:
            print(f"{options.base} cannot be checked out: {problem}", file=sys.stderr)
            return 2
        records = list(_run(races, folder / "base", options.rounds, options.floor))
    _show(records)
    slower = [each for each in records if each.get("met") is False]
    for each in (*slower, *(each for each in records if each.get("noisy"))):
        line = shlex.join(["--race", str(each["race"]), "--rounds", str(2 * options.rounds + 1)])
        what = "noisy" if each.get("noisy") else "slower"
        print(f"{what}: {each['case']} ({each['who']}); look again with {line}", file=sys.stderr)
    if not any("ratio" in each for each in records):
        return 2
    return 1 if slower else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit to compare with (HEAD)")
    parser.add_argument(
        "--race", action="append", default=[], help="only those whose name begins so; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (5)")
    parser.add_argument("--floor", type=float, default=0.95, help="the least ratio (0.95)")
    parser.add_argument("--folder", type=Path, help="where to keep the files; a real disk")
    parser.add_argument("--list", action="store_true", help="name the races and run none")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _is_wanted(name: str, asked: Sequence[str]) -> bool:
    return not asked or any(name.startswith(each) for each in asked)


def _checked_out(commit: str, folder: Path) -> str:
    """Unpack a commit; what is in the way, or nothing."""
    git = shutil.which("git")
    if git is None:
        return "git is not installed"
    folder.mkdir(mode=0o755)
    archive = folder.with_suffix(".tar")
    done = subprocess.run(  # noqa: S603 - git, with a commit that the user names
        [git, "-C", str(ROOT), "archive", "--format=tar", "-o", str(archive), commit],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return done.stderr.strip()
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()
    return ""


def _run(races: Sequence[Race], base: Path, rounds: int, floor: float) -> Iterator[Record]:
    for race in races:
        compared: dict[Figure, Compared] = {}
        problems: list[str] = []
        for number in range(rounds):
            order = (ROOT, base) if number % 2 else (base, ROOT)
            found = {side: _turn(race, side, problems) for side in order}
            for figure in found[ROOT].keys() & found[base].keys():
                one = compared.setdefault(figure, Compared(race.name, figure))
                one.add(found[ROOT][figure], found[base][figure])
        records = [compared[figure].record(floor) for figure in sorted(compared)]
        if not records:
            reason = problems[0] if problems else "the two sides have no figure in common"
            records = [{"race": race.name, "skipped": reason}]
        for each in records:
            print(json.dumps(each), flush=True)
        yield from records


def _ratio(figure: Figure, ours: float, theirs: float) -> float:
    if not ours or not theirs:
        return 1.0
    return ours / theirs if figure[2] in MORE_IS_BETTER else theirs / ours


def _turn(race: Race, side: Path, problems: list[str]) -> dict[Figure, Measured]:
    """The figures of one turn; a side that cannot take part says why."""
    command = [sys.executable, *race.arguments]
    if not race.is_cold:
        command[1] = str(side / race.arguments[0])
    path = os.pathsep.join([str(side / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, ONLY: OURS}
    try:
        return (_cold if race.is_cold else _measured)(race, command, environment)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        who = "this checkout" if side == ROOT else "the other commit"
        problems.append(f"{who}: {error}"[:300])
        return {}


def _measured(
    race: Race, command: Sequence[str], environment: Mapping[str, str]
) -> dict[Figure, Measured]:
    done = subprocess.run(  # noqa: S603 - a benchmark of this repository
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=LONGEST,
        check=True,
    )
    figures = {}
    for line in done.stdout.splitlines():
        record = json.loads(line)
        who = str(record.get("who", "")).replace(_ONCE, OURS) if _is_ours(record) else ""
        if not who or "skipped" in record:
            continue
        # The first that there is: a rate and the time of a call say the same.
        what = next((each for each in (*MORE_IS_BETTER, *LESS_IS_BETTER) if each in record), None)
        if what is not None:
            cpu_time = float(record[CPU_TIME]) if CPU_TIME in record else None
            figures[record["case"], who, what] = (float(record[what]), cpu_time)
    return figures


_ONCE = "ergon-framework"
"""What older benchmarks of the engines call us."""


def _is_ours(record: Record) -> bool:
    who = str(record.get("who", ""))
    return who.startswith(OURS) or who.partition(",")[0] == _ONCE


def _cold(
    race: Race, command: Sequence[str], environment: Mapping[str, str]
) -> dict[Figure, Measured]:
    """The least processor time of some starts: whatever disturbs one makes it longer."""
    cpu_times = []
    for _start in range(STARTS):
        before = _cpu_time()
        subprocess.run(  # noqa: S603 - our own program
            command, env=environment, stdout=subprocess.DEVNULL, timeout=LONGEST, check=True
        )
        cpu_times.append(_cpu_time() - before)
    return {(race.name, OURS, "cpu_seconds"): (min(cpu_times), None)}


def _cpu_time() -> float:
    # Not ``os.times``: it counts in hundredths of a second, a tenth of what a start takes.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(records: Sequence[Record]) -> None:
    lines: list[tuple[str, ...]] = [("case", "who", "figure", "ratio", "spread", "CPU", "met")]
    lines += [_line(each) for each in records]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip(), file=sys.stderr)


def _line(record: Record) -> tuple[str, ...]:
    if "skipped" in record:
        return (record["race"], "", "skipped", "", "", "", record["skipped"])
    low, high = record["ratio_spread"]
    told = (str(record[name]) for name in ("case", "who", "figure", "ratio"))
    met = "noisy" if record.get("noisy") else "yes" if record["met"] else "NO"
    return (*told, f"{low:.3g} to {high:.3g}", str(record.get("cpu_ratio", "")), met)


if __name__ == "__main__":
    sys.exit(main())
