"""``ergon top``: how everything stands, once or drawn anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from ergon_framework.cli.top import MOST_CONCERNS, MOST_QUEUES, lines_of
from tests.docs.terminals import Terminal
from tests.web.content import fill_jobs


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Two jobs that gave up, five that wait in two queues, and a worker."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    return f"sqlite:///{tmp_path}/work.db"


def test_without_a_terminal_it_is_printed_once(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What needs somebody first, then queues with the busiest first, then workers."""
    assert invoke(["top", "--store", store]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    lines = said.splitlines()
    assert lines[1].startswith("5 waiting  0 running")
    assert "# 2 jobs have given up" in said
    queues = next(n for n, line in enumerate(lines) if line.startswith("QUEUE"))
    assert [line.split()[:2] for line in lines[queues + 1 : queues + 3]] == [
        ["mail", "3"],
        ["pics", "2"],
    ]
    assert "w1" in lines[-1]


def test_for_programs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the same figures."""
    assert invoke(["top", "--store", store, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["pending"] == 5
    assert found["attention"][0]["level"] == "bad"
    assert [queue["name"] for queue in found["queues"]] == ["mail", "pics"]
    assert found["rates"]["done"] is None


def test_a_count_that_ends_at_a_bound_has_a_plus() -> None:
    """In the totals and in the line of its queue."""
    counts = dict.fromkeys(("pending", "active", "retrying", "failed", "completed"), 1)
    more = ["pending", "failed"]
    queue = {
        "name": "q",
        "counts": counts,
        "more": more,
        "oldest_due": 1.0,
        "done_per_second": None,
        "state": {"level": "ok", "text": "running"},
    }
    found = {
        "at": "2026-01-01T00:00:00Z",
        "attention": [],
        "counts": counts,
        "more": more,
        "rates": {"done": None},
        "queues": [queue],
        "queues_in_all": 1_000,
        "are_more_queues": True,
        "workers": [],
    }
    said = ["".join(piece.text for piece in line) for line in lines_of(found)]
    assert said[1] == "2+ waiting  1 running  1 completed  1+ gave up"
    [line] = [line.split() for line in said if line.startswith("q ")]
    assert line[1:3] == ["2+", "1"]
    assert f"and {1_000 - MOST_QUEUES}+ more queues:  ergon queues" in said


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty store says what makes something; one that is not there is an error."""
    fill_jobs(tmp_path, waiting=0)
    assert invoke(["top", "--store", f"sqlite:///{tmp_path}/work.db", "--once"]) == 0
    said = capsys.readouterr().out
    assert "nothing needs somebody" in said
    assert "no queue yet" in said
    assert invoke(["top", "--store", f"sqlite:///{tmp_path}/none.db"]) != 0
    assert "there is no file" in capsys.readouterr().err


def test_a_long_list_is_cut() -> None:
    """The rest is counted, with the command that shows it."""
    counts = dict.fromkeys(("pending", "active", "retrying", "failed", "completed"), 1)
    queue = {
        "counts": counts,
        "more": [],
        "oldest_due": 1.0,
        "done_per_second": None,
        "state": {"level": "ok", "text": "running"},
    }
    concern = {"level": "warn", "subject": "Queue a", "text": "is behind.", "command": ""}
    found = {
        "at": "2026-01-01T00:00:00Z",
        "attention": [concern] * (MOST_CONCERNS + 2),
        "counts": counts,
        "more": [],
        "rates": {"done": 1.5},
        "queues_in_all": MOST_QUEUES + 3,
        "are_more_queues": False,
        "queues": [{**queue, "name": f"q{n}"} for n in range(MOST_QUEUES + 3)],
        "workers": [],
    }
    said = ["".join(piece.text for piece in line) for line in lines_of(found)]
    assert "  and 2 more" in said
    assert "and 3 more queues:  ergon queues" in said
    assert "no worker; this starts one:  ergon worker" in said
    assert said[0].endswith("1.50/s done  p95 \N{EN DASH}")


@pytest.mark.slow
def test_on_a_terminal_it_is_drawn_anew(store: str) -> None:
    """On a screen of its own, until Ctrl-C; without colours where none are wanted."""
    arguments = ("-m", "ergon_framework.cli", "top", "--store", store, "--interval", "0.5")
    with Terminal(*arguments, patience=60.0, NO_COLOR="1") as (process, output):
        seen = ""
        for text in output:
            seen += text
            if seen.count("QUEUE") >= 2:  # it was drawn twice
                process.send_signal(2)
                break
        for _ in output:
            pass
        assert process.wait(60) == 0
    assert "\x1b[?1049h" in seen
    assert "\x1b[31m" not in seen
    assert "have given up" in seen
