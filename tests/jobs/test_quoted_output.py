"""What others say, in our logs and on a terminal: it is shown, and obeyed by nobody."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.app import console
from ergon_framework.app.observability import set_up_logging
from ergon_framework.cli.output import json_text
from ergon_framework.core.text import indented, one_line, quoted_json, whole_record
from ergon_framework.errors import ExecutorError
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from tests.jobs.real_worker import at_work, quick, wait_until, worker

FORGED = "2026-01-01 00:00:00 ERROR ergon: all is lost"


@given(st.text())
def test_nothing_in_a_quoted_text_steers_a_terminal(text: str) -> None:
    """Whatever it is, as a line, as several, as a record, and as JSON of the same value."""
    assert one_line(text).isprintable()
    for quoted in (indented(text), whole_record(text)):
        assert all(line.isprintable() for line in quoted.split("\n"))
        assert all(line.startswith("  | ") for line in quoted.split("\n")[1:])
    written = quoted_json(json.dumps([text], ensure_ascii=False))
    assert written.isprintable()
    assert json.loads(written) == [text]


def test_json_of_a_command_holds_no_control_character() -> None:
    """Also those that JSON itself lets through: DEL, C1 and the marks that turn text round."""
    told = json_text({"id": "a\x7f\x9b2J\u202eb\u2028c"})
    assert told.isprintable()
    assert json.loads(told) == {"id": "a\x7f\x9b2J\u202eb\u2028c"}


def test_a_record_of_a_text_log_cannot_be_forged() -> None:
    """The lines of one record are told from those of others."""
    root = logging.getLogger("a-root-of-its-own")
    set_up_logging("info", "text", root)
    formatter = root.handlers[0].formatter
    assert formatter is not None
    text = f"said: \x1b[2Jhello\r\n{FORGED}"
    record = logging.LogRecord("ergon", logging.INFO, "", 0, "%s", (text,), None)
    lines = formatter.format(record).split("\n")
    assert lines[0].endswith("said: \\x1b[2Jhello\\r")
    assert lines[1:] == [f"  | {FORGED}"]


def test_a_process_says_whole_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """Beside its log as well."""
    console.say(f"it said \x1b[2J\n{FORGED}")
    assert capfd.readouterr().err == f"ergon: it said \\x1b[2J\n  | {FORGED}\n"


@pytest.mark.slow
def test_the_last_words_of_an_executor_forge_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither what it writes while it lives, nor what is told of it when it died."""
    program = tmp_path / "dying.sh"
    program.write_text(f"printf '\\033[2Jhello\\n{FORGED}\\n' >&2; exit 3\n")
    executor = ExecutorSettings(command=("sh", str(program)), pool_size=1)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(ExecutorError, match="does not start"),
        at_work(worker(MemoryJobStore(), executor=executor, settings=quick())),
    ):
        wait_until(lambda: "its last words" in caplog.text, "its end")
    assert "\x1b" not in caplog.text
    words = next(each.getMessage() for each in caplog.records if "last words" in each.getMessage())
    assert f"\n  | {FORGED}" in words
    assert f"\n{FORGED}" not in words


@pytest.mark.slow
def test_what_an_executor_writes_is_shown_without_its_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the log while it lives, nor as the last words that are told when it died."""
    program = tmp_path / "dying.sh"
    program.write_text("echo 'using DB_PASSWORD=hunter2 at db' >&2; exit 3\n")
    executor = ExecutorSettings(command=("sh", str(program)), pool_size=1)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(ExecutorError, match="does not start"),
        at_work(worker(MemoryJobStore(), executor=executor, settings=quick())),
    ):
        wait_until(lambda: "its last words" in caplog.text, "its end")
    assert "using DB_PASSWORD=*** at db" in caplog.text
    assert "hunter2" not in caplog.text


TALKING = """
printf 'begin-%s-' $$ >&2
for part in 1 2 3; do printf '%01000d' 0 >&2; sleep 0.02; done
printf 'end\\r\\n' >&2
head -c 40000 /dev/zero | tr '\\0' x >&2
printf '\\nunfinished-%s' $$ >&2
kill -9 $$
"""


@pytest.mark.slow
def test_lines_of_two_processes_are_logged_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However they were written; one that is very long in parts, and the last without its end."""
    (tmp_path / "talking.sh").write_text(TALKING)
    executor = ExecutorSettings(command=("sh", str(tmp_path / "talking.sh")), pool_size=2)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "ergon.executors"]

    def beginning(word: str) -> list[str]:
        return [each for each in said() if each.startswith(word)]

    with (
        caplog.at_level(logging.INFO),
        pytest.raises(ExecutorError, match="does not start"),
        at_work(worker(MemoryJobStore(), executor=executor, settings=quick())),
    ):
        wait_until(lambda: len(beginning("unfinished")) >= 2, "the end of both")
    assert all(re.fullmatch(r"begin-\d+-0{3000}end", each) for each in beginning("begin"))
    assert len({each.split("-")[1] for each in beginning("begin")}) >= 2
    assert all(re.fullmatch(r"unfinished-\d+", each) for each in beginning("unfinished"))
    long = [len(each) for each in beginning("x")]
    assert long[:3] == [16384, 16384, 7232] or sorted(long[:6]) == [7232] * 2 + [16384] * 4
    assert not [each for each in said() if each[:1] not in "bux"]
