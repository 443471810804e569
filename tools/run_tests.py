"""Runs every test, in groups side by side: most of them wait for processes, servers and disks.

    python tools/run_tests.py [ARGUMENT...]    with arguments it is pytest, and nothing else

A group is one pytest process over some folders of ``tests``; a folder that no group names belongs
to the last one. Each group's report is printed whole when it ends. There are hardly more groups at
work than processors, so that time limits within the tests keep their meaning.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
NAMED = {
    "scale": ("campaign", "differential", "fleet"),
    "providers": ("providers", "executor", "conform"),
    "boundary": ("boundary", "storage"),
    "outside": ("app", "cli", "docs", "repository", "web"),
}
REST = "rest"
TELL_EVERY = 60.0  # seconds: whoever watches a log wants to see that something goes on
_LOOK = 0.2
_NOTHING_COLLECTED = 5


def groups(tests: Path) -> dict[str, list[Path]]:
    """The folders of each group; every folder of ``tests`` is in exactly one."""
    found: dict[str, list[Path]] = {name: [] for name in (*NAMED, REST)}
    for folder in sorted(each for each in tests.iterdir() if each.is_dir()):
        if folder.name == "__pycache__":
            continue
        name = next((name for name, parts in NAMED.items() if folder.name in parts), REST)
        found[name].append(folder)
    found[REST] += sorted(tests.glob("test_*.py"))
    return {name: folders for name, folders in found.items() if folders}


@dataclass
class Run:
    """One group at work."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    began_at: float = field(default_factory=time.monotonic)

    def report(self) -> int:
        """Print what it said; its exit code."""
        code = self.process.wait()
        self.output.seek(0)
        seconds = time.monotonic() - self.began_at
        print(f"== {self.name}: exit code {code} after {seconds:.0f} s", flush=True)
        sys.stdout.buffer.write(self.output.read())
        sys.stdout.flush()
        self.output.close()
        return 0 if code == _NOTHING_COLLECTED else code


def begin(name: str, folders: Sequence[Path]) -> Run:
    """Start one group; its output goes to a file, so that nobody waits for a reader."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the group runs
    paths = [str(folder.relative_to(ROOT)) for folder in folders]
    print(f"== {name}: {' '.join(paths)}", flush=True)
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pytest", *paths],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    return Run(name, process, output)


def run_all(waiting: dict[str, list[Path]], most: int) -> int:
    """Run the groups, so many at once; the worst exit code."""
    left = list(waiting.items())
    worst, told_at = 0, time.monotonic()
    with ending([]) as running:
        while left or running:
            while left and len(running) < most:
                running.append(begin(*left.pop(0)))
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                worst = max(worst, abs(run.report()))
            if running and time.monotonic() - told_at > TELL_EVERY:
                told_at = time.monotonic()
                names = ", ".join(run.name for run in running)
                print(f"== still at work: {names}", flush=True)
            time.sleep(_LOOK)
    return worst


@contextmanager
def ending(running: list[Run]) -> Iterator[list[Run]]:
    """Whatever happens, nobody is left behind."""
    try:
        yield running
    finally:
        for run in running:
            run.process.terminate()
        for run in running:
            run.process.wait()
            run.output.close()


def main(arguments: Sequence[str]) -> int:
    """All groups, or pytest with the arguments given."""
    if arguments:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])  # noqa: S606
    # One more than there are cores: the campaign waits for leases most of its time.
    return run_all(groups(ROOT / "tests"), min(3, (os.cpu_count() or 1) + 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
