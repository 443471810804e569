"""The kit itself: what it asks, what it skips, and that nothing makes it hang, raise or leak."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.errors import WiringError
from ergon_framework.testing.suites.executor import (
    EXECUTOR_CHECKS,
    ExecutorSuiteError,
    chosen_checks,
    exercise_executor,
)
from ergon_framework.testing.suites.executor.harness import (
    ABSENT,
    Process,
    Program,
    reply_of,
    request,
    same,
    shown,
)
from ergon_framework.testing.suites.executor.under_test import HandlerCall
from ergon_framework.testing.suites.framework import CheckOutcome, CheckResult
from tests.campaign.parameter_sample import campaign
from tests.conform.executors import GOOD, bad, python, tried

FEW = ("job_id_is_echoed", "success_is_a_success", "end_of_input_ends_it")


@pytest.mark.req("JOBS:conform")
def test_there_are_at_least_sixty_checks_and_each_says_what_it_wants() -> None:
    """Names are unique, every check has a sentence, and both weights occur."""
    names = [each.name for each in EXECUTOR_CHECKS]
    assert len(names) == len(set(names)) >= 60
    assert all(re.fullmatch(r"\S.*\.", each.sentence) for each in EXECUTOR_CHECKS)
    assert {each.required for each in EXECUTOR_CHECKS} == {True, False}
    assert sum(each.required for each in EXECUTOR_CHECKS) >= 60


def test_checks_can_be_chosen() -> None:
    """By name, and without the recommended ones; an unknown name is refused with a near one."""
    assert [each.name for each in chosen_checks(["job_id_is_echoed"])] == ["job_id_is_echoed"]
    assert all(each.required for each in chosen_checks(required_only=True))
    with pytest.raises(WiringError, match=r"no check 'job_id_is_ecoed'.*'job_id_is_echoed'"):
        chosen_checks(["job_id_is_ecoed"])
    with pytest.raises(WiringError, match="--list"):
        chosen_checks(["zzz"])


# ---- good executors -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.req("JOBS:conform")
def test_a_good_executor_passes_every_check() -> None:
    """Required and recommended, and none is skipped."""
    report = tried(GOOD, timeout=10.0)
    report.raise_for_failures(recommended=True)
    assert len(report.passed) == len(EXECUTOR_CHECKS), report


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.req("JOBS:conform")
def test_an_executor_without_sample_handlers_is_not_blamed_for_that() -> None:
    """What needs a handler is skipped with the reason; all the rest is tried, and passes."""
    report = tried(bad("bad_behaviour", "HasNoHandlers"), timeout=10.0)
    report.raise_for_failures(recommended=True)
    assert len(report.passed) > 60
    reasons = {one.reason for one in report.results if one.outcome is CheckOutcome.SKIPPED}
    assert "needs a handler 'echo': the executor has none" in reasons
    assert all(reason.startswith("needs a handler") for reason in reasons)


@pytest.mark.slow
def test_a_handler_of_the_users_stands_in_for_echo() -> None:
    """With its arguments, for the checks that need a success."""
    command = bad("bad_behaviour", "HasOneHandler")
    assert tried(command, "success_is_a_success").skipped == ("success_is_a_success",)
    for args, passes in (([2, 3], True), (["a", "b"], False)):
        report = tried(command, "success_is_a_success", call=HandlerCall("multiply", args))
        assert report.ok is passes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("EchoOfAnotherKind", "does not return an object with args"), ("BusyEcho", "status 'retry'")],
)
def test_a_handler_of_the_same_name_that_does_something_else_is_not_used(
    name: str, reason: str
) -> None:
    """It is skipped with the reason, not failed."""
    (result,) = tried(bad("bad_behaviour", name), "keeps_unicode").results
    assert result.outcome is CheckOutcome.SKIPPED
    assert reason in result.reason


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_standard_error_is_free() -> None:
    """An executor that writes hundreds of kilobytes of logs for each request passes."""
    tried(bad("bad_behaviour", "FloodsStderr"), *FEW, timeout=10.0).raise_for_failures()


@pytest.mark.slow
def test_results_are_told_one_by_one() -> None:
    """The progress is called after every check, in their order."""
    seen: list[CheckResult] = []
    report = tried(GOOD, *FEW, timeout=10.0, progress=seen.append)
    assert tuple(seen) == report.results


@pytest.mark.slow
def test_a_single_check_cannot_pass_because_nothing_was_tried() -> None:
    """Without an answer to the first request, the checks that say why are run too, and fail."""
    report = tried(python("raise SystemExit('broken')"), "job_id_is_echoed")
    assert report.skipped[-1] == "job_id_is_echoed"
    (failure,) = report.failures()
    assert failure.name == "answers_a_request"
    assert "exit code 1; last on its standard error: 'broken'" in failure.reason


@pytest.mark.slow
def test_a_failure_can_be_raised() -> None:
    """The report's error lists the failed checks with their reasons."""
    report = tried(bad("bad_behaviour", "SaysOk"), "status_is_one_of_four")
    with pytest.raises(ExecutorSuiteError, match=r"status_is_one_of_four.*'failed'"):
        report.raise_for_failures()


# ---- one bug, few findings ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("module", "name", "blamed"),
    [
        campaign(
            "bad_wire", "AnswersTwice", {"one_request_has_one_outcome", "nothing_is_answered_twice"}
        ),
        campaign("bad_wire", "Greets", {"stdout_holds_only_outcomes", "all_of_stdout_is_outcomes"}),
        ("bad_behaviour", "UnknownIsAnyError", {"unknown_handler_is_named_so"}),
    ],
)
def test_one_bug_does_not_drown_in_its_consequences(
    module: str, name: str, blamed: set[str]
) -> None:
    """Of all required checks only a few fail, those about the bug among them."""
    report = tried(bad(module, name), required_only=True)
    failed = {one.name for one in report.failures()}
    assert blamed <= failed
    assert len(failed) <= 12, report


# ---- nothing hangs, nothing raises, nothing is left ---------------------------------------------

GARBAGE = {
    "never reads": "import signal; signal.pause()",
    "exits": "raise SystemExit(4)",
    "floods": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "floods lines": "import sys\nwhile True: sys.stdout.write('{}\\n' * 9999)",
    "bytes": "import os, sys\nfor _ in sys.stdin.buffer: os.write(1, bytes(range(256)))",
    "deep": "import sys\nfor _ in sys.stdin: print('[' * 100000, flush=True)",
    "huge number": "import sys\nfor _ in sys.stdin: print('9' * 100000, flush=True)",
    "echoes": "import sys\nfor line in sys.stdin: print(line, end='', flush=True)",
    "odd fields": r"""
import sys
for line in sys.stdin:
    print('{"job_id": [{}], "status": {"a": "\ud800"}, "result": 1e999}', flush=True)
""",
    "closes stdout": "import os, signal\nos.close(1)\nsignal.pause()",
    "closes stdin": "import os, signal\nos.close(0)\nsignal.pause()",
    "stops itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "escapes": r"""
import os, signal, sys
if os.fork() == 0:
    os.setsid()  # beyond the reach of whoever ends the group
    signal.alarm(10)
    signal.pause()
for line in sys.stdin:
    print('{"job_id": "x", "status": "success"}', flush=True)
""",
}
SOME = [check.name for check in EXECUTOR_CHECKS[::9]]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("source", GARBAGE.values(), ids=list(GARBAGE))
def test_garbage_is_rejected_and_the_kit_comes_to_its_end(source: str) -> None:
    """Whatever the process does, there is a report, and it is a rejection that can be printed."""
    names = {"job_id_is_echoed", "status_is_one_of_four", *SOME}
    report = exercise_executor(python(source), timeout=0.3, only=names)
    assert not report.ok
    assert {one.name for one in report.results} >= names
    json.dumps(report.to_dict(), ensure_ascii=False).encode()
    assert all(len(one.reason) < 2000 for one in report.results)


@pytest.mark.slow
def test_the_whole_process_group_is_ended() -> None:
    """A grandchild that outlives its parent is gone when the process is closed."""
    reader, writer = os.pipe()
    code = (
        "import subprocess, sys\n"
        "sleeper = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        f"subprocess.Popen(sleeper, pass_fds=[{writer}])\n"
        "print('started', flush=True)\n"
    )
    with Process(Program(python(code)), pass_fds=[writer]) as process:
        os.close(writer)
        assert process.wait(lambda: b"\n" in process.output, 30)
        assert process.exit_code(30) == 0
        assert select.select([reader], [], [], 0)[0] == []  # the grandchild holds the other end
    assert select.select([reader], [], [], 30)[0] == [reader]
    os.close(reader)


@pytest.mark.slow
def test_an_orchestrators_variables_do_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run by a worker or not, the kit decides what the executor is told."""
    monkeypatch.setenv("ERGON_MAX_IN_FLIGHT", "7")
    code = "import os; print(os.environ.get('ERGON_MAX_IN_FLIGHT'), os.environ['MORE'], flush=True)"
    with Process(Program(python(code), {"MORE": "1"}), env={"MORE": "2"}) as process:
        assert process.exit_code(30) == 0
        assert bytes(process.output) == b"None 2\n"


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind() -> None:
    """Ctrl-C during a check ends the executor too."""
    pids: list[int] = []

    def interrupt(_: CheckResult) -> None:
        raise KeyboardInterrupt

    real = Process.__init__

    def spy(self: Process, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        pids.append(self._child.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "__init__", spy)
        with pytest.raises(KeyboardInterrupt):
            tried(GOOD, "job_id_is_echoed", timeout=10.0, progress=interrupt)
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ([], "there is no command"),
        ([""], "there is no command"),
        (["./no-such-executor"], "no command './no-such-executor'"),
        (["no-such-executor-anywhere"], "no command 'no-such-executor-anywhere'"),
        (["."], "no command '.'"),
    ],
)
def test_a_command_that_does_not_exist_is_refused(command: list[str], problem: str) -> None:
    """Before anything is started."""
    with pytest.raises(WiringError, match=re.escape(problem)):
        exercise_executor(command)


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    """Not executable, without an interpreter, and a working directory that is not there."""
    script = tmp_path / "executor"
    script.write_bytes(b"\0\1\2")
    with pytest.raises(WiringError, match="make the file executable"):
        exercise_executor([str(script)])
    script.chmod(0o755)
    with pytest.raises(WiringError, match="could not be started"):
        exercise_executor([str(script)])
    with pytest.raises(WiringError, match="no directory"):
        exercise_executor([sys.executable], cwd=tmp_path / "nowhere")


# ---- reading and comparing ----------------------------------------------------------------------


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_line_is_understood_or_explained(line: bytes) -> None:
    """Bytes of any kind make a reply with a problem, never an exception."""
    reply = reply_of(line)
    assert (reply.fields is None) <= bool(reply.problem)
    assert str(reply).isprintable()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "is blank"),
        (b"\xff", "is not UTF-8"),
        (b"{", "is not JSON"),
        (b'{"result": Infinity}', "there is no Infinity"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "no object"),
        (b"{}", "has the job_id None"),
        (b'{"job_id": 7, "status": "success"}', "has the job_id 7"),
        (b'{"job_id": "a", "status": "SUCCESS"}', "has the status 'SUCCESS'"),
        (b'{"job_id": "a", "status": "success"}', ""),
    ],
)
def test_what_is_no_outcome_is_named(line: bytes, problem: str) -> None:
    """The reason says what is wrong with the line."""
    found = reply_of(line).problem
    assert problem in found
    assert bool(found) is bool(problem)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, None, False),
        ([1, [True]], [1.0, [True]], True),
        ([1], [True], False),
        ({"a": [0]}, {"a": [False]}, False),
        ({"a": 1}, {"a": 1, "b": 1}, False),
        ([], {}, False),
        ("1", 1, False),
    ],
)
def test_json_values_are_compared_as_json(one: object, other: object, is_same: bool) -> None:
    """1 and 1.0 are one number; true is no number."""
    assert same(one, other) is is_same
    assert same(other, one) is is_same


def test_requests_are_whole_unless_something_is_taken_away() -> None:
    """Every field of the specification is there, and each can be replaced or removed."""
    whole = request("f", [1], {"a": 2}, job_id="j")
    assert (whole["job_id"], whole["context"]["job_id"], whole["args"]) == ("j", "j", [1])
    less = request("f", context={"deadline": ABSENT, "attempt": 2}, args=ABSENT)
    assert "args" not in less
    assert "deadline" not in less["context"]
    assert less["context"]["attempt"] == 2


def test_values_in_reasons_are_short_and_harmless() -> None:
    """A reason cannot steer a terminal, and does not hold a megabyte."""
    assert len(shown("x" * 10_000)) < 200
    assert shown(b"\x1b[31m\xff\n").isprintable()
