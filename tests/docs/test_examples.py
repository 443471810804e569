from __future__ import annotations

import signal
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from ergon_framework.core.loop import StopReason
from ergon_framework.engine.report import Report
from tests.docs.pages import ROOT
from tests.docs.programs import run_python
from tests.docs.terminals import Terminal

TABLE = (
    "given",
    "succeeded",
    "failed",
    "timed out",
    "handler failures",
    "retries",
    "abandoned",
    "elapsed",
)


@pytest.mark.slow
def test_the_quickstart_prints_what_its_page_promises() -> None:
    """The program people start from works as a whole."""
    done = run_python("examples/quickstart.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "order-1: charged, receipt R2",
        "order-2: not charged (business: nothing to charge)",
        "order-3: charged, receipt R3",
        "3 orders: 2 charged, 1 not",
    ]


@pytest.mark.slow
def test_the_sample_tests_pass() -> None:
    """The tests people copy are found and pass."""
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_quickstart.py")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


# ---- the tour of the engines --------------------------------------------------------------------


@pytest.mark.slow
def test_the_tour_runs_all_four_engines_and_its_sums_add_up() -> None:
    """Through a pipe it prints plain lines, the table of outcomes, and that the sums add up."""
    done = run_python("examples/engines", COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    cells = {line[:18].strip(): line[18:].split() for line in done.stdout.splitlines()}
    assert all(row in cells for row in TABLE)
    assert cells["given"] == ["30", "26", "30", "26"]
    assert cells["succeeded"] == ["26", "22", "26", "22"]
    assert cells["failed"] == ["3"] * 4
    assert cells["timed out"] == ["1"] * 4
    assert cells["handler failures"] == ["1"] * 4
    assert cells["abandoned"] == ["3", "3", "0", "0"]  # a coroutine can be stopped, a thread not
    assert "The sums add up: 112 transactions, each with exactly one outcome." in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_the_tour_with_a_partial_table() -> None:
    """On a terminal there are progress bars; Ctrl-C lets what runs finish and shows the rest."""
    with Terminal("examples/engines", NO_COLOR="1") as (process, read):
        seen = ""
        for text in read:
            seen += text
            if "another try" in seen:  # it is in the middle of the first engine
                process.send_signal(signal.SIGINT)
                break
        seen += "".join(read)
    assert process.returncode == 130
    assert "sync producer" in seen
    assert "/30" in seen  # a bar
    assert "stopping" in seen
    assert "The sums add up" in seen
    assert "stopped" in seen.partition("Outcomes")[2]
    assert "Traceback" not in seen


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tour's module of sums, found as the tour finds it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "engines"))
    import outcomes  # type: ignore[import-not-found]

    return outcomes


def _stage(**report: Any) -> Any:
    """A stage that was given ten transactions."""
    planned = {"succeeded": 6, "failed": 3, "timed_out": 1, "handler_failures": 1, "abandoned": 3}
    return SimpleNamespace(
        kind="sync producer",
        name="Seller",
        given=10,
        source=None,
        report=Report(**{**planned, **report}, stop_reason=StopReason.EXHAUSTED),
    )


def _tally(**counts: int) -> Any:
    told = {"succeeded": 6, "failed": 3, "timed_out": 1, "abandoned": 3, "retries": 6, **counts}
    return SimpleNamespace(of=lambda _task: told)


def test_the_tour_accepts_sums_that_add_up(outcomes: Any) -> None:
    """Nothing is wrong with a stage that ended as planned."""
    assert list(outcomes.problems([_stage()], _tally(), is_partial=False)) == []


@pytest.mark.parametrize(
    ("report", "counts", "problem"),
    [
        ({"succeeded": 5}, {"succeeded": 5}, "9 outcomes and 0 unfinished for 10 given"),
        ({}, {"failed": 2}, "3 failed reported, 2 told"),
        ({}, {"retries": 5}, "5 retries, planned were 6"),
        ({"handler_failures": 0}, {}, "handler_failures is 0, planned were 1"),
        ({"stranded": ("lost",)}, {}, "10 outcomes and 1 unfinished for 10 given"),
    ],
)
def test_the_tour_notices_sums_that_do_not_add_up(
    outcomes: Any, report: dict[str, Any], counts: dict[str, int], problem: str
) -> None:
    """Whatever is off is said in a sentence; the tour then ends with exit code 1."""
    stage, tally = _stage(**report), _tally(**counts)
    wrong = list(outcomes.problems([stage], tally, is_partial=False))
    assert any(problem in each for each in wrong)
    assert "do NOT add up" in outcomes.summary([stage], wrong)


@pytest.mark.parametrize("width", [100, 40])
def test_the_table_shows_every_row_on_any_width(outcomes: Any, width: int) -> None:
    """A narrow terminal gets paragraphs instead of a table that is cut off."""
    from rich.console import Console

    console = Console(file=StringIO(), width=width)
    outcomes.show(console, [_stage()], _tally())
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert all(row in text for row in TABLE)


@pytest.mark.slow
def test_the_tour_ends_with_exit_code_1_when_its_sums_do_not_add_up() -> None:
    """A tour that hides a defect would be worse than none."""
    program = (
        "import sys; sys.path.insert(0, 'examples/engines'); "
        "import importlib.util; "
        "spec = importlib.util.spec_from_file_location('tour', 'examples/engines/__main__.py'); "
        "tour = importlib.util.module_from_spec(spec); spec.loader.exec_module(tour); "
        "tour.make_stages = lambda count: []; "
        "tour.problems = lambda *_, **__: ['one transaction was lost']; "
        "sys.exit(tour.main())"
    )
    done = run_python("-c", program)
    assert done.returncode == 1
    assert "do NOT add up" in done.stdout
    assert "one transaction was lost" in done.stdout
