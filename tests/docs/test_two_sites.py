"""The example of two sites, run as a user runs it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.docs.programs import run_python


@pytest.mark.slow
@pytest.mark.req("BSFG:Role", "P6", "P14", "P16", "C3", "C5", "BOUNDARY:zones", "BOUNDARY:security")
def test_two_sites_over_a_line_that_breaks_add_up() -> None:
    """Nodes as processes over mutual TLS, a cut, a kill, a death, and nothing lost or doubled."""
    done = run_python("examples/two_sites")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    rows = [line.split() for line in done.stdout.partition("found\n")[2].splitlines()]
    figures = {" ".join(row[:-2]): row[-2:] for row in rows}
    assert figures["facts in the plant's log"] == ["60", "60"]
    assert figures["facts in the enterprise's log"] == ["60", "60"]
    assert figures["orders booked"] == ["60", "60"]
    assert figures["lost"] == ["0", "0"]
    assert "The sums add up: 60 facts, each booked once, in order." in done.stdout


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's module of sums, found as the example finds it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "two_sites"))
    import sums  # type: ignore[import-not-found]

    return sums


def test_sums_that_differ_are_told(sums: Any) -> None:
    """Each line that is off is a sentence; one that is right is none."""
    told = sums.problems([sums.Sum("facts", 3, 2), sums.Sum("lost", 0, 0)])
    assert told == ["facts is 2, and should be 3"]


def test_the_table_shows_both_sides(sums: Any) -> None:
    """What should be stands beside what is."""
    lines = sums.table([sums.Sum("facts", 3, 2)]).splitlines()
    assert [line.split() for line in lines] == [["expected", "found"], ["facts", "3", "2"]]


@pytest.mark.slow
def test_an_example_that_does_not_add_up_ends_with_exit_code_1() -> None:
    """A lost fact is not overlooked."""
    program = (
        "import runpy, sys; sys.path.insert(0, 'examples/two_sites'); "
        "story = runpy.run_path('examples/two_sites', run_name='story'); main = story['main']; "
        "main.__globals__['play'] = lambda *_: [story['Sum']('facts', 60, 59)]; "
        "sys.exit(main())"
    )
    done = run_python("-c", program)
    assert done.returncode == 1, done.stderr
    assert "does NOT add up: facts is 59, and should be 60" in done.stdout
