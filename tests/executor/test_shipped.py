from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.executor.link import REPOSITORY, Child, in_seconds, request, runtime_command

EXAMPLES = REPOSITORY / "examples" / "executors"
COMMANDS = {
    "runtime": runtime_command(str(EXAMPLES / "python" / "handlers.py") + ":registry"),
    "reference": [sys.executable, str(REPOSITORY / "reference" / "python" / "stdio_executor.py")],
    "node": ["node", str(EXAMPLES / "node" / "executor.js")],
    "shell": ["sh", str(EXAMPLES / "shell" / "executor.sh")],
}
pytestmark = [pytest.mark.slow, pytest.mark.req("EXEC:Reference", "JOBS:executor")]
TEXTS = ["", "🎉", "\u2028\u2029\u0085", 'a"b\\c\t\n\r/', "é", "\\u0041"]
AWKWARD: list[Any] = [*TEXTS, None, True, 1.5, [[]]]


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> list[str]:
    """Each of the executors that we ship, where its interpreter is installed."""
    found = COMMANDS[request.param]
    if shutil.which(found[0]) is None:
        pytest.skip(f"{found[0]} is not installed")
    return found


def test_values_come_back_as_they_were_sent(command: list[str]) -> None:
    """In any script, escaped or not, under any job id."""
    kwargs = {"a b": {"c": AWKWARD}, 'quo"te': 1, "\u2028": ""}
    with Child(command) as executor:
        for job_id in ("1", "🎉\u2028", 'a"\\\n'):
            told = executor.ask("echo", *AWKWARD, job_id=job_id, **kwargs)
            assert told["job_id"] == job_id
            assert told["result"] == {"args": AWKWARD, "kwargs": kwargs}
        plain = json.dumps(json.loads(request("echo", *AWKWARD)), ensure_ascii=False)
        executor.send(plain.encode() + b"\r\n")
        assert executor.outcome()["result"]["args"] == AWKWARD


def test_a_megabyte_comes_back(command: list[str]) -> None:
    """In one line, as everything."""
    with Child(command) as executor:
        assert executor.ask("echo", "x" * (1 << 20))["result"]["args"] == ["x" * (1 << 20)]


def test_the_samples_do_what_their_names_say(command: list[str]) -> None:
    """Each status has a handler that shows it."""
    with Child(command) as executor:
        failed = executor.ask("fail")
        assert (failed["status"], bool(failed["error_message"])) == ("error", True)
        again = executor.ask("retry")
        assert (again["status"], again["retry_after_seconds"]) == ("retry", 5)
        assert executor.ask("sleep", 0)["status"] == "success"
        assert executor.ask("print", "hello")["result"] is None
        assert executor.ask("unserialisable")["error_type"] == "unserialisable_result"
        assert executor.ask("nobody")["error_type"] == "handler_not_found"


@pytest.mark.req("X5")
def test_a_deadline_in_the_past_is_a_timeout(command: list[str]) -> None:
    """In any zone and any precision; one in the future is none."""
    with Child(command) as executor:
        for past in ("2020-01-01T00:00:00Z", "2020-01-01t00:00:00.123456789+23:59"):
            assert executor.ask("echo", _deadline=past)["status"] == "timeout"
        for future in (in_seconds(3600), "2999-12-31T23:59:60Z", None):
            assert executor.ask("echo", _deadline=future)["status"] == "success"


@pytest.mark.req("X6")
def test_a_line_that_is_no_request_is_answered(command: list[str]) -> None:
    """With its own job id where there is one, and the next line is served."""
    whole = json.loads(request("echo", job_id="j"))
    wrong: list[Any] = [
        {**whole, "function_name": 7},
        {**whole, "args": None},
        {**whole, "args": {}},
        {**whole, "kwargs": []},
        {**whole, "context": None},
        {**whole, "protocol_version": 1},
        {**whole, "context": {**whole["context"], "attempt": 0}},
        {**whole, "context": {**whole["context"], "attempt": "1"}},
        {**whole, "context": {**whole["context"], "deadline": "soon"}},
        {**whole, "context": {**whole["context"], "job_id": "other"}},
        {name: value for name, value in whole.items() if name != "context"},
    ]
    with Child(command) as executor:
        for each in wrong:
            executor.send(json.dumps(each).encode() + b"\n")
            told = executor.outcome()
            assert (told["job_id"], told["status"]) == ("j", "error"), each
            assert told["error_type"] == "invalid_request", each
        for junk in (b"[]", b"7", b"{", b'{"job_id": "j"', b"\xff\xfe", b'{"job_id": NaN}', b'"a'):
            executor.send(junk + b"\n")
            told = executor.outcome()
            assert (told["job_id"], told["status"]) == ("unknown", "error"), junk
        assert executor.ask("echo", job_id="next")["job_id"] == "next"


@pytest.mark.req("X26")
def test_another_version_is_refused_by_name(command: list[str]) -> None:
    """With the request's own job id, whatever else that version may look like."""
    with Child(command) as executor:
        executor.send(b'{"protocol_version": "2", "job_id": "j", "params": {}}\n')
        told = executor.outcome()
        assert (told["job_id"], told["error_type"]) == ("j", "unsupported_protocol_version")


def test_blank_lines_are_skipped_and_the_last_needs_no_newline(command: list[str]) -> None:
    """Then the exit code is 0."""
    with Child(command) as executor:
        executor.send(b"\n \t\r\n", request("echo").rstrip(b"\n"))
        executor.end_input()
        assert executor.outcome()["status"] == "success"
        assert executor.out.rest() == []
        assert executor.code() == 0


@pytest.mark.req("X20")
def test_sigterm_ends_it_with_nothing(command: list[str]) -> None:
    """Idle, with its input open: exit code 0."""
    with Child(command) as executor:
        assert executor.ask("echo")["status"] == "success"
        executor.signal(signal.SIGTERM)
        while command[0] == "sh" and not is_over(executor):
            executor.signal(signal.SIGTERM)  # a shell may miss one just before it reads
        assert executor.code() == 0
        assert executor.out.rest() == []


def is_over(executor: Child) -> bool:
    """Whether it ends before long."""
    try:
        executor.process.wait(0.2)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_the_reference_needs_nothing_but_python() -> None:
    """It runs isolated from every installed package."""
    command = [sys.executable, "-I", "-S", *COMMANDS["reference"][1:]]
    with Child(command) as executor:
        assert executor.ask("echo", 1)["result"]["args"] == [1]
