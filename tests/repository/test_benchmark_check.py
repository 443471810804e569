"""``benchmarks/check.py`` compares a checkout with a commit, and names what has become slower."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GIT = shutil.which("git")
WHO = ("-c", "user.name=Test", "-c", "user.email=test@example.com")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        GIT is None or not (ROOT / ".git").exists(), reason="needs git and a clone of its own"
    ),
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout that a test may change."""
    assert GIT is not None
    place = tmp_path / "clone"
    subprocess.run([GIT, "clone", "-q", str(ROOT), str(place)], check=True)  # noqa: S603
    return place


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    """A repository that has nothing but the benchmarks, for those that race no code of ours."""
    assert GIT is not None
    place = tmp_path / "benchmarks-alone"
    (place / "src").mkdir(parents=True)
    shutil.copytree(
        ROOT / "benchmarks", place / "benchmarks", ignore=shutil.ignore_patterns("__pycache__")
    )
    for words in (["init", "-q"], ["add", "-A"], [*WHO, "commit", "-qm", "Begin"]):
        subprocess.run([GIT, "-C", str(place), *words], check=True)  # noqa: S603
    return place


def check(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The script of a checkout, in a process of its own."""
    command = [sys.executable, str(clone / "benchmarks" / "check.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)  # noqa: S603


def test_a_slower_start_is_named(clone: Path) -> None:
    """With the race, the ratio, and the command that looks again."""
    package = clone / "src" / "ergon_framework" / "__init__.py"
    text = package.read_text(encoding="utf-8")
    package.write_text(text + "\nsum(range(30_000_000))\n", encoding="utf-8")
    done = check(clone, "HEAD", "--race", "cold:import", "--rounds", "1")
    assert done.returncode == 1, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["race"], record["figure"], record["met"]) == (
        "cold:import", "cpu_seconds", False,
    )  # fmt: skip
    assert record["ratio"] < 0.8
    assert "look again with --race cold:import --rounds 3" in done.stderr


WORK = "import json\nprint(json.dumps({'case': 'a', 'who': 'Ergon', %s}))\n"


def commit(clone: Path) -> None:
    """Commit what a test has changed in its checkout."""
    assert GIT is not None
    subprocess.run([GIT, "-C", str(clone), *WHO, "commit", "-qam", "Change"], check=True)  # noqa: S603


@pytest.mark.parametrize(
    ("before", "after", "code", "ratios"),
    [
        ("'per_second': 100, 'cpu_us': 10", "'per_second': 100, 'cpu_us': 12", 1, (1.0, 0.833)),
        ("'per_second': 100, 'cpu_us': 10", "'per_second': 80, 'cpu_us': 10", 1, (0.8, 1.0)),
        ("'us': 8, 'cpu_us': 8", "'us': 4, 'cpu_us': 4", 0, (2.0, 2.0)),
        ("'p50_ms': 1.0", "'p50_ms': 1.2", 1, (0.833, None)),
    ],
    ids=["more work", "a wait", "faster", "latency"],
)
def test_clock_and_processor_time_are_compared(
    benchmarks: Path, before: str, after: str, code: int, ratios: tuple[float, float | None]
) -> None:
    """A race falls by either of them; where no processor time is told, the clock decides."""
    script = benchmarks / "benchmarks" / "providers.py"
    script.write_text(WORK % before, encoding="utf-8")
    commit(benchmarks)
    script.write_text(WORK % after, encoding="utf-8")
    done = check(benchmarks, "HEAD", "--race", "providers:quota", "--rounds", "1")
    assert done.returncode == code, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["ratio"], record.get("cpu_ratio")) == ratios
    assert record["met"] is (code == 0)
    assert ("slower: a (Ergon)" in done.stderr) is (code == 1)


# In each round, this checkout's rate changes and its processor time does not.
RATES = """import json, pathlib
told = pathlib.Path(__file__).with_name("rounds-told")
rates = {rates}
number = int(told.read_text()) if told.exists() else 0
told.write_text(str(number + 1))
print(json.dumps({{"case": "a", "who": "Ergon", "per_second": rates[number], "cpu_us": 10}}))
"""


@pytest.mark.parametrize(
    ("rates", "code", "is_noisy"),
    [
        ([90, 90, 90, 120, 90], 1, False),
        ([90, 90, 90, 120, 120], 0, True),
        ([99, 99, 120, 60, 60], 0, False),
    ],
    ids=["a wait in four rounds of five", "in three", "a median above the floor"],
)
def test_a_wait_is_told_from_noise_by_the_rounds(
    benchmarks: Path, rates: list[int], code: int, is_noisy: bool
) -> None:
    """Without more processor time, a race falls only if nearly all rounds say that it is slower."""
    script = benchmarks / "benchmarks" / "providers.py"
    script.write_text(RATES.format(rates=[100] * 5), encoding="utf-8")
    commit(benchmarks)
    script.write_text(RATES.format(rates=rates), encoding="utf-8")
    done = check(benchmarks, "HEAD", "--race", "providers:quota", "--rounds", "5")
    assert done.returncode == code, done.stderr
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["met"], record.get("noisy", False)) == (code == 0, is_noisy)
    assert ("noisy: a (Ergon); look again with" in done.stderr) is is_noisy


@pytest.mark.campaign
def test_each_side_runs_its_own_benchmarks(clone: Path) -> None:
    """Peers are left out; a benchmark that one side has changed is the other's as it was."""
    done = check(clone, "HEAD", "--race", "providers:success-async", "--rounds", "1", "--floor=0")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records
    assert all(each["who"].startswith("Ergon") and each["met"] for each in records)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-commit"], "no-such-commit cannot be checked out"),
        (["--race", "nonsense"], "no race is called nonsense"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_what_cannot_be_compared(words: list[str], told: str) -> None:
    """Nothing is measured, and the exit code is not that of a slower race."""
    done = check(ROOT, *words)
    assert done.returncode == 2
    assert told in done.stderr
