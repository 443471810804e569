"""The commands for jobs: what they print, what they refuse, and their exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.cli.enqueue import LINES_PER_COMMIT
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import Succeeded
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import WorkerRecord
from tests import fork_server
from tests.app.workplace import Workplace
from tests.jobs.manual_worker import BROKEN, Hand

ERGON = (sys.executable, "-m", "ergon_framework.cli")

pytestmark = pytest.mark.req("JOBS:operator", "X22")
SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
default_executor = "python"
max_attempts = 3

[executors.python]
command = ["python"]
"""


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, captured: Any) -> None:
        self.code = code
        self.out: str = captured.out
        self.err: str = captured.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class JobCommands:
    """A store, a worker on it that is driven by hand, and the command line."""

    def __init__(self, place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = place.directory
        self._capsys = capsys
        self.client = JobClient("sqlite:///work.db", settings=JobsSettings(max_attempts=3))
        self.hand = Hand(self.client.store)

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        return Answer(invoke(arguments), self._capsys.readouterr())

    def bury(self, *ids: str, **options: Any) -> None:
        """Jobs that failed for good."""
        for job_id in ids:
            self.client.enqueue("h", id=job_id, max_attempts=1, **options)
            self.hand.run(BROKEN)


@pytest.fixture
def ergon(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Iterator[JobCommands]:
    """The command line with a settings file."""
    workplace.settings(SETTINGS)
    made = JobCommands(workplace, capsys)
    yield made
    made.client.close()


# ---- enqueue ------------------------------------------------------------------------------------


def test_enqueue_prints_the_id_and_nothing_else(ergon: JobCommands) -> None:
    """The pinned options reach the job."""
    answer = ergon(
        "enqueue", "resize", "--args", '["a.png"]', "--kwargs", '{"width": 3}', "--queue", "images",
        "--max-attempts", "2", "--timeout", "1.5", "--delay", "60", "--unique", "k",
        "--priority", "7", "--expires-in", "90",
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    (line,) = answer.out.splitlines()
    shape = ergon("jobs", "show", line, "--json").json
    assert (shape["handler"], shape["queue"], shape["status"]) == ("resize", "images", "pending")
    assert (shape["args"], shape["kwargs"]) == (["a.png"], {"width": 3})
    assert (shape["max_attempts"], shape["timeout"], shape["priority"]) == (2, 1.5, 7)
    assert shape["unique_key"] == "k"
    assert shape["run_at"] > shape["created_at"]
    assert shape["expires_at"] > shape["run_at"]


def test_enqueue_with_an_id_of_ones_own(ergon: JobCommands) -> None:
    """A second job of that id is refused with exit code 1."""
    assert ergon("enqueue", "h", "--id", "mine").out == "mine\n"
    answer = ergon("enqueue", "h", "--id", "mine", "--json")
    assert answer.code == 1
    assert answer.json["error"]["code"] == "duplicate_job"
    assert ergon.client.show("mine")["deliveries"] == 0


def test_enqueue_makes_a_key_of_arguments(ergon: JobCommands) -> None:
    """Of all, of some by name, or of the handler; for a while, and only while it waits."""
    by = ["--unique-by", "customer,order.id", "--unique-for", "60"]
    first = ergon("enqueue", "h", "--kwargs", '{"customer": 1, "order": {"id": 2}}', *by)
    told = '{"customer": 1, "order": {"id": 2, "note": "x"}}'
    again = ergon("enqueue", "h", "--kwargs", told, *by, "--json").json
    assert (again["id"], again["is_new"]) == (first.out.strip(), False)
    shape = ergon("jobs", "show", first.out.strip(), "--json").json
    assert shape["unique_key"].startswith("h:")
    assert shape["unique_states"] == ["pending", "active", "completed"]
    assert shape["unique_until"] > shape["created_at"]
    said = ergon("why", first.out.strip()).out
    assert f"It holds the unique key {shape['unique_key']!r} until it ends" in said
    assert shape["unique_until"] in said


def test_enqueue_debounces(ergon: JobCommands) -> None:
    """The job that waits gets the arguments and the due time of the last call."""
    options = ["--unique-by", "handler", "--unique-states", "pending", "--on-duplicate", "extend"]
    first = ergon("enqueue", "h", "--args", "[1]", "--delay", "5", *options).out.strip()
    before = ergon("jobs", "show", first, "--json").json
    assert ergon("enqueue", "h", "--args", "[2]", "--delay", "50", *options).out.strip() == first
    after = ergon("jobs", "show", first, "--json").json
    assert after["args"] == [2]
    assert after["run_at"] > before["run_at"]
    assert (after["unique_states"], after["unique_until"]) == (["pending"], None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--unique-by", "customer"], "which this call does not have"),
        (["--unique", "k", "--unique-by", "args"], "both by and key"),
        (["--unique-for", "0"], "has the period 0"),
        (["--unique-states", "done"], "has the state 'done'"),
        (["--unique-states", "pending,active,completed"], "without a period"),
    ],
)
def test_enqueue_refuses_what_makes_no_key(
    ergon: JobCommands, options: list[str], problem: str
) -> None:
    """With what to write instead; nothing is stored."""
    told = ergon("enqueue", "h", *options)
    assert told.code == 2
    assert problem in told.err
    assert ergon("jobs", "list", "--json").json == []


def test_enqueue_answers_with_the_job_that_holds_the_unique_key(ergon: JobCommands) -> None:
    """By default; reject and replace are there too."""
    first = ergon("enqueue", "h", "--unique", "k").out.strip()
    again = ergon("enqueue", "h", "--unique", "k", "--json").json
    assert again == {"id": first, "is_new": False, "replaced": None}
    assert ergon("enqueue", "h", "--unique", "k", "--on-duplicate", "reject").code == 1
    newer = ergon("enqueue", "h", "--unique", "k", "--on-duplicate", "replace", "--json").json
    assert newer["replaced"] == first


def test_enqueue_at_a_time(ergon: JobCommands) -> None:
    """As RFC 3339 text."""
    job = ergon("enqueue", "h", "--run-at", "2031-01-01T00:00:00+01:00").out.strip()
    assert ergon.client.show(job)["run_at"] == "2030-12-31T23:00:00Z"


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["h", "--args", "[1"], "--args is not JSON"),
        (["h", "--args", "['a.png']"], """write it like --args '["a.png", 3]'"""),
        (["h", "--kwargs", "width=3"], """write it like --kwargs '{"width": 3}'"""),
        (["h", "--args", "{}"], "--args is no JSON array"),
        (["h", "--args", "[NaN]"], "NaN is no number in JSON"),
        (["h", "--args", '[{"a": 1, "a": 2}]'], "--args is not JSON: a name stands twice"),
        (["h", "--kwargs", '{"a": 1, "a": 2}'], "--kwargs is not JSON: a name stands twice"),
        (["h", "--args", "[" * 100_000], "--args is not JSON: nested too deeply"),
        (["h", "--kwargs", "[]"], "--kwargs is no JSON object"),
        (["h", "--kwargs", "hunter2"], "--kwargs is not JSON"),
        (["a\x07b"], r"handler holds the control character '\x07'"),
        ([""], "handler is empty"),
        (["h", "--queue", "a\nb"], "queue holds the control character"),
        (["h", "--delay", "-1"], "delay is -1 seconds"),
        (["h", "--run-at", "2001-01-01T00:00:00Z"], "in the past"),
        (["h", "--run-at", "2999-01-01T00:00:00Z"], "more than ten years ahead"),
        (["h", "--run-at", "soon"], "run_at is no point in time"),
        (["h", "--timeout", "0"], "timeout is 0 seconds"),
        (["h", "--max-attempts", "0"], "max_attempts is 0"),
        (["h", "--max-attempts", "two"], "--max-attempts"),
        (["h", "--on-duplicate", "replace"], "says nothing without a unique key"),
        (["h", "--args", json.dumps(["x" * 1_100_000])], "the limit is 1,048,576"),
        ([], "no handler is named"),
        (["--stdin", "--args", "[]"], "are for one job"),
    ],
)
def test_what_enqueue_refuses(ergon: JobCommands, arguments: list[str], told: str) -> None:
    """Exit code 2, one line, nothing stored, and no argument in the words."""
    answer = ergon("enqueue", *arguments, "--json")
    assert answer.code == 2
    assert told in answer.err
    assert "error" in answer.json
    assert "hunter2" not in answer.err
    assert ergon("jobs", "list", "--json").json == []


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "\u2028", "a "])
def test_a_worker_has_a_name_of_one_line(ergon: JobCommands, name: str) -> None:
    """It stands in listings, histories and logs."""
    answer = ergon("worker", "--burst", "--name", name, "--json")
    assert answer.code == 2
    assert answer.err.startswith("error: worker name ")
    assert len(answer.err.splitlines()) == 1
    assert answer.json["error"]["details"]["field"] == "worker name"


def test_enqueue_can_wait_for_the_result(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id first, then the result as JSON; in one document for programs."""
    from ergon_framework.jobs import client as module

    enqueue = module.JobClient.enqueue

    def run_at_once(self: JobClient, *args: Any, **options: Any) -> Any:
        job = enqueue(self, *args, **options)
        ergon.hand.run(BROKEN if args[0] == "bad" else Succeeded(), {"size": 3})
        return job

    monkeypatch.setattr(module.JobClient, "enqueue", run_at_once)
    assert ergon("enqueue", "h", "--wait", "30", "--id", "a").out == 'a\n{"size": 3}\n'
    assert ergon("enqueue", "h", "--wait", "30", "--json").json["result"] == {"size": 3}
    answer = ergon("enqueue", "bad", "--wait", "30", "--max-attempts", "1", "--json")
    assert answer.code == 1
    assert answer.json["error"]["details"]["code"] == "ValueError"


def test_enqueue_that_waits_in_vain(ergon: JobCommands) -> None:
    """The job goes on, and its id was printed."""
    answer = ergon("enqueue", "h", "--wait", "0.01", "--id", "a")
    assert (answer.code, answer.out) == (1, "a\n")
    assert "still pending" in answer.err


def test_many_jobs_come_from_lines(ergon: JobCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects or arrays; common options hold for all; ids are printed one per line."""
    lines = '{"id": "a", "kwargs": {"x": 1}}\n[1, 2]\n\n{"handler": "other", "queue": "own"}\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    answer = ergon("enqueue", "h", "--stdin", "--queue", "q")
    assert answer.code == 0
    shapes = [ergon.client.show(job_id) for job_id in answer.out.splitlines()]
    assert [shape["handler"] for shape in shapes] == ["h", "h", "other"]
    assert [shape["queue"] for shape in shapes] == ["q", "q", "own"]
    assert shapes[1]["args"] == [1, 2]
    monkeypatch.setattr(sys, "stdin", io.StringIO("[1]\n[2]\n"))
    rows = ergon("enqueue", "h", "--stdin", "--json").json
    assert [row["is_new"] for row in rows] == [True, True]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2 is not JSON"),
        ("5", "line 2 is neither an object nor an array"),
        ('{"handler": "h", "wat": 1}', "line 2: a job has no option 'wat'"),
        ("[1]", "line 2: handler is empty"),
    ],
)
def test_a_wrong_line_is_named(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    """What was in the same commit is not stored."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"handler": "h"}\n' + line + "\n"))
    answer = ergon("enqueue", "-")
    assert answer.code == 2
    assert told in answer.err
    assert (answer.out, ergon("jobs", "list", "--json").json) == ("", [])


def test_commits_before_a_wrong_line_stay(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ids are printed, so that nobody enqueues them twice."""
    lines = "[1]\n" * LINES_PER_COMMIT + "[2]\n{\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    answer = ergon("enqueue", "h", "--stdin")
    assert answer.code == 2
    assert len(answer.out.splitlines()) == LINES_PER_COMMIT
    found = ergon("jobs", "list", "--limit", str(2 * LINES_PER_COMMIT), "--json").json
    assert len(found) == LINES_PER_COMMIT
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    error = ergon("enqueue", "h", "--stdin", "--json").json["error"]
    told = error["details"]["stored"], error["details"]["next_line"]
    assert told == (LINES_PER_COMMIT, LINES_PER_COMMIT + 1)
    assert f"the jobs of lines 1 to {LINES_PER_COMMIT} are stored, no others" in answer.err
    assert f"then send what begins with line {LINES_PER_COMMIT + 1}" in answer.err
    assert "quote it for the shell" not in answer.err


@pytest.mark.parametrize("words", ["enqueue h --stdin", "boundary append", "boundary put b k -"])
def test_a_standard_input_that_is_closed(words: str, tmp_path: Path) -> None:
    """There is nothing to read, and nothing is stored; no defect is claimed."""
    ergon = f"{sys.executable} -m ergon_framework.cli {words}"
    done = subprocess.run(  # noqa: S603 - our own command
        ["sh", "-c", f"{ergon} <&-"],  # noqa: S607 - any shell will do
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "defect" not in done.stderr


def test_stored_jobs_are_counted_when_nobody_reads_their_ids(tmp_path: Path) -> None:
    """A script that sends them again would have them twice."""
    lines = "".join(f"[{number}]\n" for number in range(1500))
    done = fork_server.run(
        [
            sys.executable,
            "-m",
            "ergon_framework.cli",
            "enqueue",
            "h",
            "--stdin",
            "--store",
            f"sqlite:///{tmp_path / 'work.db'}",
        ],
        input=lines,
        stdout=_broken_pipe(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "1,000 jobs are stored" in done.stderr


def _broken_pipe() -> int:
    """The writing end of a pipe that nobody can read any more."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


# ---- jobs ---------------------------------------------------------------------------------------


def test_jobs_list_filters(ergon: JobCommands) -> None:
    """By status, queue and handler; the newest first; at most so many."""
    ergon.client.enqueue_many(
        [{"handler": "h", "id": f"{n}", "queue": f"q{n % 2}"} for n in range(4)]
    )
    ergon.client.enqueue("other", id="x", tags=["vip"], metadata={"plan": "pro"})
    ergon.client.cancel("0")
    listed = [row["id"] for row in ergon("jobs", "list", "--json").json]
    assert sorted(listed) == ["0", "1", "2", "3", "x"]
    for filters, expected in (
        (["--status", "cancelled"], ["0"]),
        (["--status", "CANCELLED", "--status", "pending", "--queue", "q0"], ["0", "2"]),
        (["--handler", "other"], ["x"]),
        (["--queue", "nowhere"], []),
        (["--tag", "vip", "--metadata", "plan=pro"], ["x"]),
        (["--tag", "vip", "--metadata", "plan=free"], []),
        (["--since", "1h", "--tag", "vip"], ["x"]),
        (["--until", "1h"], []),
        (["--error", "timeout"], []),
        (["--state", "pending", "--since", "2020-01-01T00:00:00Z", "--handler", "other"], ["x"]),
    ):
        rows = ergon("jobs", "list", "--json", *filters).json
        assert sorted(row["id"] for row in rows) == expected
    assert len(ergon("jobs", "list", "--json", "--limit", "2").json) == 2
    table = ergon("jobs", "list").out.splitlines()
    assert table[0].split()[:5] == ["id", "status", "handler", "queue", "tries"]
    assert len(table) == 6
    answer = ergon("jobs", "list", "--status", "happy")
    assert answer.code == 2
    assert "use pending, active" in answer.err
    for wrong in (["--since", "soon"], ["--metadata", "plan"], ["--tag", "a=b"]):
        answer = ergon("jobs", "list", *wrong)
        assert answer.code in (1, 2)
        assert wrong[0].strip("-") in answer.err


def test_tags_are_given_and_shown(ergon: JobCommands) -> None:
    """People see tags in one line, programs as they are."""
    job = ergon("enqueue", "h", "--tag", "a", "--tag", "b:1", "--metadata", "k=v=w").out.strip()
    shown = ergon("jobs", "show", job, "--json").json
    assert (shown["tags"], shown["metadata"]) == (["a", "b:1"], {"k": "v=w"})
    out = ergon("jobs", "show", job).out
    assert "a, b:1" in out
    assert '{"k": "v=w"}' in out
    found = ergon("jobs", "list", "--tag", "a", "--json").json
    assert [each["id"] for each in found] == [job]
    assert "tags" not in ergon("jobs", "show", ergon.client.enqueue("h"), "--json").json


def test_jobs_show_has_every_pinned_field(ergon: JobCommands) -> None:
    """Also the result, and the failures before it."""
    ergon.client.enqueue("h", id="a")
    ergon.hand.run(BROKEN)
    ergon.client.retry("a")
    ergon.hand.run(Succeeded(), ["done"])
    shape = ergon("jobs", "show", "a", "--json").json
    pinned = {"id", "status", "handler", "queue", "attempts", "max_attempts", "deliveries"}
    assert pinned | {"history", "result", "last_error"} <= set(shape)
    assert (shape["attempts"], shape["max_attempts"], shape["deliveries"]) == (2, 3, 2)
    assert shape["result"] == ["done"]
    assert shape["executor"] == "python"
    assert [entry["event"] for entry in shape["history"]] == ["failed", "hurried", "completed"]
    page = ergon("jobs", "show", "a").out
    assert 'result          ["done"]' in page
    assert "hurried" in page


@pytest.mark.parametrize("command", ["jobs show", "jobs cancel", "jobs retry", "dlq show", "why"])
def test_an_unknown_job(ergon: JobCommands, command: str) -> None:
    """Exit code 1, and an error object for programs."""
    answer = ergon(*command.split(), "nobody", "--json")
    assert answer.code == 1
    assert answer.json["error"]["code"] == "not_found"


def test_cancel_and_retry(ergon: JobCommands) -> None:
    """A cancelled job may be brought back; a running one can not be cancelled."""
    ergon.client.enqueue("h", id="a")
    assert ergon("jobs", "cancel", "a", "--json").json["status"] == "cancelled"
    assert ergon("jobs", "cancel", "a").code == 0
    assert ergon("jobs", "retry", "a", "--json").json == {"id": "a", "status": "pending"}
    ergon.hand.claim()
    for verb in ("cancel", "retry"):
        answer = ergon("jobs", verb, "a", "--json")
        assert answer.code == 1
        assert answer.json["error"]["code"] == "job_state"


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_nobody_can_be_asked_without_a_standard_input(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Python has none where it was closed; the jobs stay as they were."""
    ergon.client.enqueue("h", id="a")
    if verb == "delete":
        ergon.client.cancel("a")
    before = ergon.client.status("a")
    monkeypatch.setattr(sys, "stdin", None)
    answer = ergon("jobs", verb, "--all", "--json")
    assert answer.code == 2
    assert f"nobody was asked whether to {verb} 1 job" in answer.json["error"]["message"]
    assert ergon.client.status("a") == before


def test_many_are_changed_by_a_filter(ergon: JobCommands) -> None:
    """Counted first, changed when somebody is sure, told in numbers."""
    for n in range(3):
        ergon.client.enqueue("h", id=f"x{n}", tags=["x"])
    ergon.client.enqueue("h", id="y", tags=["y"], delay=900)
    which = ("--tag", "x", "--json")
    counted = {"matched": 3, "cancelled": 0, "dry_run": True}
    assert ergon("jobs", "cancel", *which, "--dry-run").json == counted
    answer = ergon("jobs", "cancel", *which)
    assert answer.code == 2
    assert "nobody was asked whether to cancel 3 jobs" in answer.json["error"]["message"]
    late = ergon("jobs", "reschedule", *which, "--in", "500", "--limit", "2", "--yes").json
    assert late == {"matched": 2, "rescheduled": 2, "dry_run": False}
    why = ("--by", "ann", "--reason", "gone")
    done = ergon("jobs", "cancel", *which, "--since", "1h", "--yes", *why)
    assert (done.code, done.json) == (0, {"matched": 3, "cancelled": 3, "dry_run": False})
    assert ergon("jobs", "show", "x1", "--json").json["history"][-1]["by"] == "ann"
    assert ergon("jobs", "cancel", *which, "--yes").code == 1
    deleted = ergon("jobs", "delete", "--status", "cancelled", "--yes", "--json").json
    assert deleted == {"matched": 3, "deleted": 3, "dry_run": False}
    ergon.bury("dead", tags=["x"])
    assert ergon("jobs", "requeue", "--error", "defect", "--yes", "--json").json["requeued"] == 1
    assert [job.id for job in ergon.client.jobs()] == ["dead", "y"]


def test_one_is_changed_by_its_id(ergon: JobCommands) -> None:
    """Nobody is asked: an id cannot mean more than one thinks."""
    ergon.bury("a")
    assert ergon("jobs", "requeue", "a", "--json").json == {"id": "a", "status": "pending"}
    shown = ergon("jobs", "reschedule", "a", "--in", "86400", "--json").json
    assert shown["status"] == "pending"
    assert ergon.client.find("a").run_at > ergon.client.store.now() + 80_000
    assert ergon("jobs", "delete", "a").code == 1
    ergon.client.cancel("a")
    assert ergon("jobs", "delete", "a", "--json").json == {"id": "a", "became": "deleted"}


def test_a_dead_letter_goes_back_with_other_arguments(ergon: JobCommands) -> None:
    """What is left out stays; the same command again makes no second job."""
    ergon.bury("a")
    which = ("jobs", "edit", "a", "--json")
    nothing = ergon(*which)
    assert nothing.code == 2
    assert "ergon jobs requeue" in str(nothing.json)
    assert ergon(*which, "--args", "{}").code != 0
    call = (*which, "--args", '["b.png"]', "--by", "ann", "--reason", "a typo", "--new-id", "b")
    assert ergon(*call).json == {"id": "b", "edited_from": "a", "is_new": True}
    assert ergon(*call).json == {"id": "b", "edited_from": "a", "is_new": False}
    assert ergon("jobs", "show", "b", "--json").json["args"] == ["b.png"]
    told = ergon("why", "a").out
    assert "it was sent back with other arguments" in told
    assert "by ann as the job b: a typo" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cancel"], "what to cancel?"),
        (["delete", "--all", "--tag", "x"], "--all contradicts the filters"),
        (["cancel", "a", "--tag", "x"], "names one job"),
        (["cancel", "--status", "failed", "--yes"], "cannot be cancelled"),
        (["reschedule", "--tag", "x"], "when is it to run?"),
        (["reschedule", "--tag", "x", "--in", "1", "--at", "2040-01-31T12:00:00Z"], "when is it"),
    ],
)
def test_bulk_commands_want_to_know_which(ergon: JobCommands, words: list[str], told: str) -> None:
    """A command that could change everything says what is missing."""
    ergon.client.enqueue("h", id="a", tags=["x"])
    answer = ergon("jobs", *words)
    assert answer.code in (1, 2)
    assert told in answer.err
    assert ergon.client.status("a") == "pending"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reschedule", "--in", "1e12"], "delay is 1e+12 seconds"),
        (["reschedule", "--at", "2030-13-01"], "run_at"),
        (["reschedule", "--at", "9999-12-31T23:59:59Z"], "more than ten years ahead"),
        (["cancel", "--reason", "x" * 1001], "reason"),
        (["cancel", "--by", "x" * 300], "by"),
    ],
)
def test_a_trial_refuses_what_the_change_would_refuse(
    ergon: JobCommands, words: list[str], told: str
) -> None:
    """Also when no job matches: whoever wrote a script has it tried before there are any."""
    for _ in range(2):
        for option in ("--dry-run", "--yes"):
            answer = ergon("jobs", *words, "--all", option)
            assert (answer.code, told in answer.err) == (2, True), answer.err
        ergon.client.enqueue("h")


def test_a_trial_is_refused_by_a_store_that_was_moved(ergon: JobCommands) -> None:
    """Its jobs would be changed in a place that nobody works with."""
    ergon.client.enqueue("h", id="a", tags=["x"])
    ergon.client.cancel("a")
    assert ergon("move", "sqlite:///work.db", "sqlite:///new.db", "--shut").code == 0
    for words in (["jobs", "delete", "--all"], ["dlq", "purge", "--all"], ["forget", "--tag", "x"]):
        answer = ergon(*words, "--dry-run")
        assert (answer.code, "was moved to" in answer.err) == (2, True), answer.err


def test_cancel_what_runs(ergon: JobCommands) -> None:
    """Its worker is asked; until it has ended, the job tells who asked, and why."""
    ergon.client.enqueue("h", id="a")
    ergon.hand.claim()
    assert "--running" in ergon("jobs", "cancel", "a").err
    why = ("--by", "ann", "--reason", "the wrong file")
    assert ergon("jobs", "cancel", "--running", "a", *why, "--json").json == {
        "id": "a",
        "status": "active",
        "was_cancelled_before": False,
        "is_requested": True,
    }
    shown = ergon("jobs", "show", "a", "--json").json["cancel_requested"]
    assert (shown["by"], shown["reason"]) == ("ann", "the wrong file")
    assert '"by": "ann"' in ergon("jobs", "show", "a").out
    assert "ann asked for its cancellation" in ergon("why", "a").out


def test_a_row_that_only_readers_refuse_is_listed_where_they_point_to(ergon: JobCommands) -> None:
    """Its job may even run: no claim reads what is wrong, and nobody sets the row aside."""
    for name in ("a", "b", "c"):
        assert ergon("enqueue", "work", "--id", name).code == 0
    with closing(sqlite3.connect(ergon.directory / "work.db")) as connection, connection:
        connection.execute("UPDATE ergon_jobs SET last_error = '{' WHERE id != 'b'")
    shown = ergon("jobs", "show", "a")
    hint = shown.err[shown.err.index("ergon jobs unreadable") :].splitlines()[0].rstrip(")")
    told = ergon(*shlex.split(hint)[1:]).out
    assert sorted(line.split()[0] for line in told.splitlines()[-2:]) == ["a", "c"]
    listed = ergon("jobs", "unreadable", "--json").json
    assert [(each["id"], each["aside"]) for each in listed] == [("c", False), ("a", False)]
    assert len(ergon("jobs", "unreadable", "--json", "--limit", "1").json) == 1
    assert ergon("jobs", "unreadable", "--aside", "--json").json == []
    for option in ("--restore", "--discard"):
        refused = ergon("jobs", "unreadable", option, "a")
        assert (refused.code, "was not set aside" in refused.err) == (1, True)
        assert "put its columns right" in refused.err


def test_rows_that_cannot_be_read(ergon: JobCommands) -> None:
    """They are listed, told by doctor, restored once they are right, or discarded."""
    for name in ("a", "b"):
        assert ergon("enqueue", "work", "--id", name).code == 0

    def write(options: str | None) -> None:
        with closing(sqlite3.connect(ergon.directory / "work.db")) as connection, connection:
            connection.execute("UPDATE ergon_jobs SET options = ?", (options,))

    def claimed() -> list[str]:
        ask = ClaimRequest(worker="w", lease=10, slots={"python": 5}, default="python")
        return [job.id for job in ergon.client.store.settle_and_claim([], ask)[1].jobs]

    write("{")
    assert ergon("jobs", "list").code == 0
    shown = ergon("jobs", "show", "a")
    assert (shown.code, "ergon jobs unreadable" in shown.err) == (1, True)
    listed = ergon("jobs", "unreadable", "--json").json
    assert [(each["id"], each["aside"]) for each in listed] == [("b", False), ("a", False)]
    assert claimed() == []
    listed = ergon("jobs", "unreadable", "--json").json
    assert [(each["id"], each["status"]) for each in listed] == [("b", "pending"), ("a", "pending")]
    assert {each["aside"] for each in listed} == {True}
    doctor = ergon("doctor", "--json")
    assert (doctor.code, "2 rows of jobs cannot be read" in doctor.out) == (1, True)
    assert ergon("jobs", "unreadable", "--restore", "a").code == 1
    write(None)
    assert ergon("jobs", "unreadable", "--restore", "a").code == 0
    assert ergon("jobs", "unreadable", "--discard", "b").code == 0
    assert ergon("jobs", "unreadable", "--discard", "b").code == 1
    assert ergon("jobs", "unreadable", "--json").json == []
    assert claimed() == ["a"]


# ---- dlq ----------------------------------------------------------------------------------------


def test_dlq_families(ergon: JobCommands) -> None:
    """Jobs that failed alike are one row, the largest first, as the console shows them."""
    ergon.bury("a", "b")
    ergon.client.enqueue("render", id="c", max_attempts=1, queue="pics")
    ergon.hand.run(BROKEN)
    first, second = ergon("dlq", "families", "--json").json
    assert (first["number"], first["handler"], first["queues"]) == (2, "h", ["default"])
    assert first["latest_id"] == "b"
    assert (second["number"], second["handler"], second["code"]) == (1, "render", "ValueError")
    assert [
        each["handler"] for each in ergon("dlq", "families", "--queue", "pics", "--json").json
    ] == ["render"]
    table = ergon("dlq", "families", "--limit", "1").out
    assert "ValueError" in table
    assert "render" not in table
    assert ergon("dlq", "families", "--code", "Other", "--json").json == []


def test_dlq_lists_only_dead_jobs(ergon: JobCommands) -> None:
    """With their last failure; one that is not dead is not shown."""
    ergon.bury("a")
    ergon.client.enqueue("h", id="alive")
    (row,) = ergon("dlq", "list", "--json").json
    assert (row["id"], row["status"]) == ("a", "failed")
    assert row["last_error"] == {
        "kind": "defect", "code": "ValueError", "message": "no such picture",
    }  # fmt: skip
    assert "ValueError" in ergon("dlq", "list").out
    assert ergon("dlq", "show", "a", "--json").json["id"] == "a"
    answer = ergon("dlq", "show", "alive")
    assert answer.code == 1
    assert "it is pending" in answer.err


@pytest.mark.req("X17")
def test_dlq_requeue_resets_the_counters(ergon: JobCommands) -> None:
    """The job begins anew in its own queue."""
    ergon.bury("a", queue="q")
    answer = ergon("dlq", "requeue", "a", "--json")
    assert answer.code == 0
    assert answer.json == {"matched": 1, "requeued": 1, "dry_run": False}
    shape = ergon.client.show("a")
    assert (shape["status"], shape["queue"], shape["purge_at"]) == ("pending", "q", None)
    assert (shape["attempts"], shape["deliveries"]) == (0, 0)


def test_dlq_requeue_of_a_job_whose_key_is_taken(ergon: JobCommands) -> None:
    """Nothing was sent back: the exit code says so, and the job stays where it is."""
    ergon.bury("a", unique="k")
    ergon.client.enqueue("h", id="b", unique="k")
    answer = ergon("dlq", "requeue", "a", "--json")
    assert (answer.code, answer.json["requeued"]) == (1, 0)
    assert ergon.client.status("a") == "failed"


def test_dlq_filters(ergon: JobCommands) -> None:
    """By id, queue, handler, code and age; each may be tried dry."""
    ergon.bury("a", "b", queue="q")
    ergon.bury("c")
    for filters, count in (
        (["--queue", "q"], 2),
        (["--handler", "h"], 3),
        (["--handler", "other", "--all"], None),
        (["--code", "ValueError"], 3),
        (["--id", "a", "--id", "c"], 2),
        (["a", "--id", "b"], 2),
        (["--older-than", "0"], 3),
        (["--all", "--limit", "2"], 2),
        (["--all"], 3),
    ):
        answer = ergon("dlq", "requeue", "--dry-run", "--json", *filters)
        if count is None:
            assert (answer.code, "contradicts" in answer.err) == (2, True)
        else:
            assert answer.json == {"matched": count, "requeued": 0, "dry_run": True}
    assert len(ergon("dlq", "list", "--json").json) == 3
    assert [row["id"] for row in ergon("dlq", "list", "--json", "--queue", "default").json] == ["c"]


def test_dlq_purge_deletes_for_good(ergon: JobCommands) -> None:
    """Only what matches."""
    ergon.bury("a", "b")
    assert ergon("dlq", "purge", "--id", "a", "--json").json["purged"] == 1
    assert ergon("jobs", "show", "a").code == 1
    assert ergon("dlq", "purge", "--all").code == 0
    assert ergon("dlq", "list", "--json").json == []


@pytest.mark.parametrize("verb", ["requeue", "purge"])
def test_dlq_verbs_want_to_know_which(ergon: JobCommands, verb: str) -> None:
    """Without a filter they are refused; without a match they say so."""
    ergon.client.enqueue("h", id="alive")
    answer = ergon("dlq", verb)
    assert answer.code == 2
    assert "--all" in answer.err
    for arguments in (["--all"], ["alive"], ["--queue", "q"]):
        answer = ergon("dlq", verb, *arguments, "--json")
        assert answer.code == 1
        assert answer.json["error"]["code"] == "not_found"
    assert ergon.client.status("alive") == "pending"


# ---- queues, schedules, workers, why ------------------------------------------------------------


def test_queues(ergon: JobCommands) -> None:
    """Pausing keeps jobs from being claimed; limits can be set and lifted."""
    ergon.client.enqueue("h", queue="q")
    assert ergon("queues", "pause", "q", "--json").json["paused"] is True
    (row,) = ergon("queues", "list", "--json").json
    assert (row["name"], row["paused"], row["counts"]["pending"]) == ("q", True, 1)
    assert row["oldest_due_at"]
    with pytest.raises(ValueError, match="not enough values"):
        ergon.hand.claim()
    assert ergon("queues", "resume", "q", "--json").json["paused"] is False
    limited = ergon("queues", "limit", "q", "--max-active", "2", "--rate", "0.5", "--json").json
    assert (limited["max_active"], limited["rate"]) == (2, 0.5)
    lifted = ergon("queues", "limit", "q", "--max-active", "none", "--json").json
    assert (lifted["max_active"], lifted["rate"]) == (None, 0.5)
    assert "oldest due at" in ergon("queues", "list").out
    assert ergon("queues", "list").err == ""


def test_a_queue_is_pinned_to_a_version(ergon: JobCommands) -> None:
    """A worker of another version gets nothing of it; the pin is shown, and can be taken away."""
    ergon.client.enqueue("h", queue="q")
    assert ergon("queues", "pin", "q", "--version", "2", "--json").json["pinned_version"] == "2"
    (row,) = ergon("queues", "list", "--json").json
    assert (row["pinned_version"], row["missing_version"], row["paused"]) == ("2", "2", False)
    assert "pinned version" in ergon("queues", "list").out
    with pytest.raises(ValueError, match="not enough values"):
        ergon.hand.claim()
    assert ergon("queues", "unpin", "q", "--json").json["pinned_version"] is None
    assert ergon.hand.claim().queue == "q"
    assert ergon("queues", "list", "--json").json[0]["missing_version"] is None


@pytest.mark.parametrize("version", ["", "v" * 101, "two\nlines"])
def test_a_version_that_cannot_be(ergon: JobCommands, version: str) -> None:
    """No queue is pinned to one, and no worker starts that would be of it."""
    ergon.client.enqueue("h", queue="q")
    for command in (["queues", "pin", "q"], ["worker", "--burst"]):
        refused = ergon(*command, "--version", version)
        assert refused.code == 2
        assert "a version has 1 to 100 printable characters" in refused.err
    assert ergon("queues", "list", "--json").json[0]["pinned_version"] is None


def test_a_queue_on_a_store_that_acknowledges_before_it_syncs(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at the queues is warned, beside what programs read."""
    ergon.client.enqueue("h", queue="q")
    monkeypatch.setattr(SqliteJobStore, "is_synced", False)
    told = ergon("queues", "list", "--json")
    assert [row["name"] for row in told.json] == ["q"]
    assert "warning: acknowledged jobs may be lost" in told.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["limit", "q"], "which limit?"),
        (["limit", "q", "--max-active", "0"], "max_active must be at least 1"),
        (["limit", "q", "--rate", "fast"], "rate must be a number"),
        (["limit", "q", "--burst", "0"], "--burst"),
    ],
)
def test_wrong_limits(ergon: JobCommands, arguments: list[str], told: str) -> None:
    """Exit code 2, and nothing is changed."""
    answer = ergon("queues", *arguments)
    assert answer.code == 2
    assert told in answer.err
    assert ergon("queues", "list", "--json").json == []


def test_schedules(ergon: JobCommands) -> None:
    """Those that a worker has stored: pause, resume, run now, remove."""
    from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings

    nightly = ScheduleSettings(cron="0 3 * * *", handler="clean", queue="q")
    Scheduler(ergon.client.store, {"nightly": nightly}).sync()
    (row,) = ergon("schedules", "list", "--json", "--fires", "3").json
    assert (row["name"], row["handler"], row["paused"]) == ("nightly", "clean", False)
    assert len(row["fires"]) == 3
    assert ergon("schedules", "pause", "nightly", "--json").json["next_at"] is None
    assert "it is paused" in ergon("schedules", "list").out
    assert ergon("schedules", "resume", "nightly", "--json").json["next_at"] == row["next_at"]
    own = ["acme", "clean", "--every", "1h", "--args", '["acme"]', "--jitter", "60"]
    put = ergon("schedules", "put", *own, "--ends-at", "2099-01-01T00:00:00Z", "--json").json
    assert (put["cron"], put["jitter"], put["source"]) == ("@every 3600s", 60.0, "client")
    assert ergon("schedules", "show", "acme", "--json").json["fires"] == []
    assert "2099-01-01" in ergon("schedules", "show", "acme").out
    assert "belongs to" in ergon("schedules", "put", "nightly", "clean", "--every", "1h").err
    assert "no JSON array" in ergon("schedules", "put", "b", "clean", "--args", "{}").err
    assert ergon("schedules", "remove", "acme", "--json").json["removed"] is True
    job = ergon("schedules", "run", "nightly").out.strip()
    assert ergon.client.show(job)["queue"] == "q"
    assert ergon("schedules", "run", "nightly", "--json").json["is_new"] is True
    assert ergon("schedules", "remove", "nightly", "--json").json["removed"] is True
    assert ergon("schedules", "list", "--json").json == []
    answer = ergon("schedules", "run", "nightly", "--json")
    assert (answer.code, answer.json["error"]["code"]) == (1, "not_found")


def test_workers(ergon: JobCommands) -> None:
    """Those that told of themselves."""
    now = ergon.client.store.now()
    pool = {"in_flight": 2, "slots": 0, "recycled": {"max_jobs": 3, "max_age": 1}}
    ergon.client.store.heartbeat(
        WorkerRecord(
            id="w", host="here", pid=7, version="1", started_at=now, executors={"python": pool}
        )
    )
    (row,) = ergon("workers", "--json").json
    assert (row["id"], row["pid"], row["state"], row["busy"]) == ("w", 7, "running", 2)
    assert row["executors"] == {"python": pool}
    out = ergon("workers").out
    assert "all" in out
    assert "recycled 3 by max_jobs, 1 by max_age" in out


def test_why(ergon: JobCommands) -> None:
    """Sentences for people, a list of them for programs."""
    ergon.client.enqueue("h", id="a")
    ergon.client.store.set_queue("default", is_paused=True)
    page = ergon("why", "a").out
    assert page.startswith("Job a is pending.\n")
    assert "Its queue 'default' is paused" in page
    shape = ergon("why", "a", "--json").json
    assert (shape["id"], shape["status"]) == ("a", "pending")
    assert any("No worker is alive" in each for each in shape["why"])


# ---- which store --------------------------------------------------------------------------------


def test_the_store_is_found_beside_the_settings_file(
    ergon: JobCommands, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From any working directory; a URL given by hand counts from there instead."""
    ergon.client.enqueue("h", id="a")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    config = str(ergon.directory / "ergon.toml")
    assert ergon("jobs", "show", "a", "--config", config).code == 0
    answer = ergon("jobs", "show", "a", "--url", "sqlite:///own.db")
    assert answer.code == 1
    assert f"there is no file {Path('own.db').absolute()}" in answer.err
    monkeypatch.setenv("ERGON_JOBS__STORE", f"sqlite:///{ergon.directory / 'work.db'}")
    assert ergon("jobs", "show", "a").code == 0


@pytest.mark.parametrize("command", ["jobs list", "queues list", "workers", "schedules list"])
def test_looking_makes_no_store(ergon: JobCommands, command: str) -> None:
    """A store that is not there is an error with a remedy, and is not made by asking for it."""
    answer = ergon(*command.split(), "--url", "sqlite:///nowhere.db")
    assert answer.code == 1
    assert "nowhere.db" in answer.err
    assert not Path("nowhere.db").exists()


def test_without_a_store_the_error_says_what_to_add(
    ergon: JobCommands, workplace: Workplace
) -> None:
    """Exit code 2."""
    workplace.settings("[jobs]\nmax_attempts = 2\n")
    for command in (["jobs", "list"], ["enqueue", "h"], ["dlq", "list"], ["workers"]):
        answer = ergon(*command)
        assert answer.code == 2
        assert 'or url = "sqlite:///work.db" under [store]' in answer.err


@pytest.mark.parametrize("group", ["jobs", "dlq", "queues"])
def test_a_group_without_a_command(ergon: JobCommands, group: str) -> None:
    """Wrong use, and where to read on."""
    answer = ergon(group)
    assert answer.code == 2
    assert f"see ergon {group} --help" in answer.err


def test_schedules_alone_lists_them(ergon: JobCommands) -> None:
    """``ergon schedules`` is the listing."""
    assert ergon("schedules", "--json").json == []


@pytest.mark.req("JOBS:badinput")
def test_a_store_in_memory_is_refused(ergon: JobCommands) -> None:
    """It would end with the command, and the job with it."""
    for command in (["enqueue", "h"], ["worker", "--burst"], ["jobs", "list"]):
        answer = ergon(*command, "--url", "memory://")
        assert answer.code == 2
        assert "ends with this command" in answer.err
