"""``ergon trace``: found by any id, in any number of journals, drawn as a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.journal import lines
from ergon_framework.cli import invoke
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.storage.journal import SqliteJournal
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:trace")

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER = "0af7650000000000000000000000000f"
BEGAN = 1_800_000_000.0


def span(
    number: int, parent: int = 0, name: str = "", trace_id: str = TRACE, **more: Any
) -> SpanRecord:
    """A span that begins ten milliseconds after the one before it."""
    began_at = BEGAN + number / 100
    values = {
        "name": name or f"step{number}",
        "source": "worker w1",
        "began_at": began_at,
        "ended_at": began_at + 0.005,
        "parent_id": f"{parent:016x}" if parent else "",
    }
    return SpanRecord(trace_id=trace_id, span_id=f"{number:016x}", **{**values, **more})


WHOLE = [
    span(1, name="boundary.publish", unit="fact-1", source="producer"),
    span(2, 1, "boundary.append", source="zone plant"),
    span(3, 1, "job.enqueue", unit="job-1"),
    span(4, 3, "job.run", unit="job-1", failure="Boom"),
    span(5, 3, "job.run", unit="job-1", ended_at=BEGAN + 2),
]


@pytest.fixture
def place(workplace: Workplace) -> Path:
    """A working directory with settings and a journal."""
    folder = Path.cwd()
    (folder / "ergon.toml").write_text("", encoding="utf-8")
    write(folder / "ergon-journal.db", WHOLE)
    return folder


def write(path: Path, spans: list[SpanRecord]) -> None:
    """Add spans to a journal."""
    with SqliteJournal(path) as journal:
        journal.write((), spans)


def told(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What the command prints, without trailing blanks."""
    assert invoke(["trace", *words]) == 0, capsys.readouterr().err
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> str:
    """What the command says when there is nothing to print."""
    assert invoke(["trace", *words]) == code
    return capsys.readouterr().err


def test_a_trace_is_drawn_as_a_tree(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets, durations, the process, the unit; what failed is marked."""
    head, titles, *rows = told(capsys, TRACE)
    assert head == f"trace {TRACE}: 5 spans, 3 processes, 1.990 s, 1 failed"
    assert titles.split() == ["span", "at", "took", "source", "unit", "failure"]
    assert [row.split("+")[0].rstrip() for row in rows] == [
        "boundary.publish",
        "├ boundary.append",
        "└ job.enqueue",
        "  ├ job.run ✗",
        "  └ job.run",
    ]
    assert rows[1].split() == ["├", "boundary.append", "+10.0", "ms", "5.0", "ms", "zone", "plant"]
    assert rows[3].endswith("job-1   Boom")
    assert "1.950 s" in rows[4]


@pytest.mark.parametrize(
    "asked",
    [
        TRACE.upper(),
        f" {TRACE} ",
        TRACE[:6],
        TRACE[:20],
        f"00-{TRACE}-{1:016x}-01",
        "fact-1",
        "job-1",
    ],
)
def test_it_is_found_by_any_id(asked: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace's own, its first digits, a traceparent, or that of a unit."""
    assert told(capsys, asked)[0].startswith(f"trace {TRACE}:")


def test_a_short_beginning_must_be_unique(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise those that begin so are named; fewer than six digits are no beginning."""
    write(place / "ergon-journal.db", [span(9, trace_id=OTHER)])
    error = refused(capsys, TRACE[:6])
    assert TRACE in error
    assert OTHER in error
    assert told(capsys, TRACE[:8])[0].startswith(f"trace {TRACE}:")
    assert "no trace of" in refused(capsys, TRACE[:5])


def test_a_unit_of_several_traces_shows_the_newest(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are named below."""
    write(place / "ergon-journal.db", [span(500, trace_id=OTHER, unit="job-1")])
    lines_told = told(capsys, "job-1")
    assert lines_told[0].startswith(f"trace {OTHER}:")
    assert lines_told[-1] == f"also part of: {TRACE}"


def test_a_missing_parent_is_a_gap(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spans of one unrecorded parent are kept together."""
    path = place / "other.db"
    write(path, [span(7, 99), span(8, 99), span(9, 7)])
    rows = told(capsys, TRACE, "--journal", str(path))[2:]
    assert [row.split("+")[0].rstrip() for row in rows] == [
        "(parent not recorded)",
        "├ step7",
        "│ └ step9",
        "└ step8",
    ]


def test_several_journals_are_one_trace(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of zones on other machines, as files or URLs; what is in two of them is shown once."""
    other = place / "other.db"
    write(other, [span(6, 5, "rrq.executor", unit="job-1"), WHOLE[0]])
    names = [str(place / "ergon-journal.db"), f"sqlite:///{other}"]
    words = [word for name in names for word in ("--journal", name)]
    shape = json.loads("\n".join(told(capsys, "fact-1", *words, "--json")))
    assert [each["name"] for each in shape["spans"]] == [
        *(each.name for each in WHOLE),
        "rrq.executor",
    ]
    assert [each["depth"] for each in shape["spans"]] == [0, 1, 1, 2, 2, 3]


def test_json_for_programs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object; each span behind its parent."""
    shape = json.loads("\n".join(told(capsys, "job-1", "--json")))
    assert (shape["trace_id"], shape["others"]) == (TRACE, [])
    first, *_, failed, _last = shape["spans"]
    assert first["parent_id"] is None
    assert first["unit"] == "fact-1"
    assert failed["failure"] == "Boom"
    assert failed["offset"] == pytest.approx(0.03)


def test_nothing_found_says_where_was_looked(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 1."""
    error = refused(capsys, "nobody")
    assert "'nobody'" in error
    assert str(place / "ergon-journal.db") in error
    assert "--journal" in error


def test_a_journal_that_is_not_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and not made."""
    assert "nowhere.db" in refused(capsys, "x", "--journal", "nowhere.db")
    assert not (place / "nowhere.db").exists()
    (place / "ergon.toml").write_text('[telemetry]\njournal = "none"\n', encoding="utf-8")
    assert "no journal in the settings" in refused(capsys, "x", code=2)


def test_a_file_that_is_no_journal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names it; no traceback."""
    (place / "odd.db").write_text("this is no database at all, but long enough to be read" * 20)
    error = refused(capsys, "x", "--journal", "odd.db")
    assert "odd.db" in error
    assert "unexpected" not in error


def test_ids_that_lead_in_a_circle() -> None:
    """They are shown all the same, each span once."""
    spans = [span(1, 2), span(2, 1), span(3, 3), span(4, 1)]
    shown = [line.span.name for line in lines(spans) if line.span is not None]
    assert sorted(shown) == ["step1", "step2", "step3", "step4"]


def test_a_very_deep_trace(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that enqueues the next one, for ever."""
    path = place / "deep.db"
    write(path, [span(n, n - 1) for n in range(1, 1200)])
    shape = json.loads("\n".join(told(capsys, TRACE, "--journal", str(path), "--json")))
    assert shape["spans"][-1]["depth"] == 1198
    assert len(told(capsys, TRACE, "--journal", str(path))) == 1201


def test_no_span_steers_the_terminal(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in names and ids are shown as text."""
    path = place / "odd.db"
    write(path, [span(1, name="\x1b[2J", unit="a\nb")])
    shown = "\n".join(told(capsys, TRACE, "--journal", str(path)))
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 3


def test_alone_it_lists_the_latest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, over all journals that are named; those that failed on request."""
    later = [span(7, trace_id=OTHER, name="schedule.fire", unit="night-1")]
    write(Path("other.db"), [*later, WHOLE[3]])
    titles, row = told(capsys)
    assert titles.replace("  ", " ").startswith("trace id")
    assert titles.split()[-5:] == ["name", "unit", "spans", "failed", "failure"]
    assert row.split() == [
        *(TRACE, "2027-01-15T08:00:00.010000Z", "1.990", "s", "boundary.publish", "fact-1"),
        *("5", "1", "Boom"),
    ]
    both = ("--journal", "ergon-journal.db", "--journal", "other.db")
    assert invoke(["trace", "--json", *both]) == 0
    listed = json.loads(capsys.readouterr().out)
    # A span that two journals tell of counts once.
    assert [(each["trace_id"], each["spans"]) for each in listed] == [(TRACE, 5), (OTHER, 1)]
    assert listed[1]["unit"] == "night-1"
    assert invoke(["trace", "--json", "--limit", "1", "--failed", *both]) == 0
    [only] = json.loads(capsys.readouterr().out)
    assert (only["trace_id"], only["failure"]) == (TRACE, "Boom")


def test_no_trace_yet(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fails, and what decides about it is named."""
    Path("ergon-journal.db").unlink()
    write(Path("ergon-journal.db"), [])
    assert invoke(["trace", "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == []
    assert "[telemetry] spans" in found.err


def test_no_trace_that_failed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Traces that did not fail are recorded all the same, and no setting is to blame."""
    Path("ergon-journal.db").unlink()
    write(Path("ergon-journal.db"), [span(7, trace_id=OTHER, name="schedule.fire", unit="night")])
    assert invoke(["trace", "--json", "--failed"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == []
    assert "none of the latest traces has a span that failed" in found.err
    assert "[telemetry]" not in found.err
