"""Runs every test, in groups side by side: most of them wait for processes, servers and disks.

    python tools/run_tests.py [ARGUMENT...]           with arguments it is pytest, and nothing else
    python tools/run_tests.py --fast [ARGUMENT...]    the unit and twin tests only
    python tools/run_tests.py --for-ci SECONDS        no group is started after so many; those that
                                                      were not are named. A test that fails is run
                                                      once more when all have ended

A group is one pytest process over some folders or files of ``tests``. What no group names belongs
to the group of the folder it is in, or to the last one. Each group's report is printed whole when
it ends. There are hardly more groups at work than processors, so that time limits within the tests
keep their meaning. Groups still take time from each other: ``--for-ci`` tells a test that fails
beside them only, and names it as FLAKY, from one that fails by itself.
"""

from __future__ import annotations

import compileall
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parent.parent
NAMED = {
    "connectors": ("connectors",),
    "jobs": ("jobs",),
    "boundary": ("boundary",),
    "docs": ("docs", "repository"),
    "providers": ("providers",),
    "cli": ("cli", "web"),
    "move": ("app/move",),
    "app": ("app",),
    "conform": ("conform",),
    "fleet": ("fleet",),
    "integrations": ("integrations", "compat", "task", "telemetry"),
    "node": ("boundary/node",),
    "differential": ("differential", "executor"),
    "storage": ("storage",),
    "campaign": ("campaign",),
}
"""In the order in which they are started: those that take longest first, so that no processor is
without work in the end."""
REST = "rest"
FAST = ("unit", "core", "engine/test_twins.py")
"""What ``--fast`` runs, without the tests that are marked as slow."""
FAST_OPTIONS = ("-q", "-m", "not slow and not campaign")
LISTED_PATHS = 12
TELL_EVERY = 60.0  # seconds: whoever watches a log wants to see that something goes on
RERUN_TIME = 420.0
"""Seconds: the groups that are at work when no more are started end in these, where failures of a
busy machine are likely, and the few tests that are run again take little."""
MOST_RERUN = 8  # tests: more that fail have something in common, which is not the moment
_LOOK = 0.2
_END_TIMEOUT = 20.0  # seconds: a group stops its servers
_FAILED = 1
_NOTHING_COLLECTED = 5
_OF_PYTEST = re.compile(r"/test_\w+\.py$")  # which compiles them in its own way


@dataclass(frozen=True)
class Group:
    """What one pytest process is given: folders and files, and what others take of them."""

    paths: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()

    def arguments(self, root: Path) -> list[str]:
        """As pytest understands it in that folder."""
        paths = [str(path.relative_to(root)) for path in self.paths]
        ignored = [f"--ignore={path.relative_to(root)}" for path in self.ignored]
        return [*self.options, *paths, *ignored]


def groups(tests: Path) -> dict[str, Group]:
    """Every file of ``tests`` is in exactly one: that of the longest name it is under."""
    homes = {tests / part: name for name, parts in NAMED.items() for part in parts}
    homes |= {
        path: REST
        for path in sorted(tests.iterdir())
        if path not in homes and path.name != "__pycache__" and _is_tested(path)
    }
    found = {name: _group(homes, name) for name in (*NAMED, REST)}
    return {name: group for name, group in found.items() if group.paths}


def fast_groups(tests: Path, number: int) -> dict[str, Group]:
    """The files of ``FAST``, dealt to so many processes by their length.

    A process takes seconds to start: there is one for each processor, and four at most. How long
    the tests of a file take is not known before they run; of these, the longer files take longer.
    """
    files = [path for part in FAST for path in _test_files(tests / part)]
    shares: list[list[Path]] = [[] for _ in range(number)]
    lengths = [0] * number
    for path in sorted(files, key=lambda each: (-each.stat().st_size, each)):
        least = lengths.index(min(lengths))
        shares[least].append(path)
        lengths[least] += path.stat().st_size
    return {
        f"fast-{place}": Group(tuple(share), options=FAST_OPTIONS)
        for place, share in enumerate(shares, 1)
        if share
    }


def _test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def _is_tested(path: Path) -> bool:
    return path.is_dir() or path.match("test_*.py")


def _group(homes: Mapping[Path, str], name: str) -> Group:
    mine = [path for path, home in homes.items() if home == name and path.exists()]
    others = [path for path, home in homes.items() if home != name]
    return Group(
        tuple(mine), tuple(each for each in others if any(path in each.parents for path in mine))
    )


@dataclass
class Run:
    """One group at work."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    notes: Path
    """Where pytest keeps what failed."""
    began_at: float = field(default_factory=time.monotonic)
    computed: float = 0.0
    """Seconds of processors that it took, with all that it started and waited for."""

    def is_over(self) -> bool:
        """Whether it has ended; what it took is known from then on."""
        before = _computed()
        if self.process.poll() is None:
            return False
        self.computed = _computed() - before
        return True

    def report(self) -> int:
        """Print what it said; its exit code."""
        code = self.process.wait()
        self.output.seek(0)
        seconds = time.monotonic() - self.began_at
        took = f"after {seconds:.0f} s, {self.computed:.0f} s of processors"
        print(f"== {self.name}: exit code {code} {took}", flush=True)
        sys.stdout.buffer.write(self.output.read())
        sys.stdout.flush()
        self.output.close()
        return 0 if code == _NOTHING_COLLECTED else code

    def failed(self) -> list[str]:
        """The tests that failed; none when it ended in another way."""
        noted = self.notes / "v" / "cache" / "lastfailed"
        if self.process.returncode != _FAILED or not noted.exists():
            return []
        return sorted(json.loads(noted.read_text()))


def begin(name: str, group: Group, root: Path, notes: Path) -> Run:
    """Start one group; its output goes to a file, so that nobody waits for a reader."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the group runs
    arguments = group.arguments(root)
    is_long = len(group.paths) > LISTED_PATHS
    shown = [*group.options, f"{len(group.paths)} files"] if is_long else arguments
    print(f"== {name}: {' '.join(shown)}", flush=True)
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={notes}", *arguments],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    return Run(name, process, output, notes)


def run_all(
    waiting: Mapping[str, Group],
    most: int,
    root: Path = ROOT,
    *,
    start_until: float = math.inf,
    reruns: int = 0,
) -> int:
    """Run the groups of a checkout, so many at once; the worst exit code.

    No group is started more than ``start_until`` seconds after the first one. If hardly any test
    failed (``reruns``), what failed is run again at the end, by itself, until ``RERUN_TIME`` later.
    """
    late = time.monotonic() + start_until
    with tempfile.TemporaryDirectory() as notes:
        ended = _run_groups(waiting, most, root, late, Path(notes))
    worst = max((code for code, _ in ended), default=0)
    failed = [test for _, tests in ended for test in tests]
    # A group that ended in any other way than with failed tests has no second chance.
    is_known = all(tests for code, tests in ended if code)
    if failed and is_known and len(failed) <= reruns and time.monotonic() < late + RERUN_TIME:
        return _run_again(failed, root)
    return worst


def _run_groups(
    waiting: Mapping[str, Group], most: int, root: Path, late: float, notes: Path
) -> list[tuple[int, list[str]]]:
    """The exit code of each group, and the tests that failed in it."""
    left = list(waiting.items())
    told_at = time.monotonic()
    codes: list[tuple[int, list[str]]] = []
    with ending([]) as running:
        while left or running:
            if left and time.monotonic() > late:
                names = ", ".join(name for name, _ in left)
                print(f"== there is no time left: NOT run: {names}", flush=True)
                left.clear()
            while left and len(running) < most:
                name, group = left.pop(0)
                running.append(begin(name, group, root, notes / name))
            for run in [run for run in running if run.is_over()]:
                running.remove(run)
                codes.append((abs(run.report()), run.failed()))
            if running and time.monotonic() - told_at > TELL_EVERY:
                told_at = time.monotonic()
                names = ", ".join(run.name for run in running)
                ended = len(waiting) - len(left) - len(running)
                print(f"== {ended} of {len(waiting)} groups ended; at work: {names}", flush=True)
            time.sleep(_LOOK)
    return codes


def _run_again(tests: Sequence[str], root: Path) -> int:
    """Run tests that failed beside others; the exit code. Those that pass now are named."""
    print(f"== once more, by themselves: {', '.join(tests)}", flush=True)
    code = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pytest", *tests], cwd=root, stdin=subprocess.DEVNULL, check=False
    ).returncode
    if code == 0:
        print(f"== FLAKY, passed when run by themselves: {', '.join(tests)}", flush=True)
    return code


def _computed() -> float:
    """Seconds of processors that children took who have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def ending(running: list[Run]) -> Iterator[list[Run]]:
    """Whatever happens, nobody is left behind, and what they said is not lost.

    A group that is interrupted stops its servers and reports the tests that it has run.
    """
    try:
        yield running
    finally:
        for run in running:
            run.process.send_signal(signal.SIGINT)
        for run in running:
            try:
                run.process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                run.process.kill()
            run.report()


def stop_on_sigterm() -> None:
    """Let SIGTERM end this process as an error does: by way of ``ending``."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def compile_all() -> None:
    """Write the bytecode of everything that the tests start, before they run.

    Tests let processes meet a full disk. Python writes as much of a module's bytecode as there is
    room for, says nothing, and every process that imports the module after that fails.
    """
    for name in ("src", "tests", "examples", "tools"):
        compileall.compile_dir(ROOT / name, quiet=2, workers=0, rx=_OF_PYTEST)


def run_fast(arguments: Sequence[str]) -> int:
    """The unit and twin tests, on every processor; with arguments, in one pytest process."""
    if arguments:
        paths = [str(Path("tests") / part) for part in FAST]
        become_pytest([*FAST_OPTIONS, *paths, *arguments])
    processes = min(4, os.cpu_count() or 1)
    return run_all(fast_groups(ROOT / "tests", processes), processes)


def become_pytest(arguments: Sequence[str]) -> NoReturn:
    """Replace this process, so that signals and the terminal are those of pytest."""
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606


def main(arguments: Sequence[str]) -> int:
    """All groups, or pytest with the arguments given."""
    stop_on_sigterm()
    if arguments[:1] == ["--fast"]:
        return run_fast(arguments[1:])
    start_until, reruns = math.inf, 0
    if arguments[:1] == ["--for-ci"] and len(arguments) == 2:
        start_until, reruns = float(arguments[1]), MOST_RERUN
    elif arguments:
        become_pytest(arguments)
    compile_all()
    # Three more than there are cores: with two more, a sixth of the time of two cores was unused,
    # because a group waits for leases, servers and disks while another one computes.
    most = min(8, (os.cpu_count() or 1) + 3)
    return run_all(groups(ROOT / "tests"), most, start_until=start_until, reruns=reruns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
