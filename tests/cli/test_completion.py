"""What a shell offers for the rest of a word: names and ids of the store, quickly and silently."""

from __future__ import annotations

import logging
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from ergon_framework.jobs.client import JobClient
from tests.app.workplace import Workplace

BASH = {"_ERGON_COMPLETE": "complete_bash"}


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """Completion lets nobody log in its process, which is over soon; this one is not."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def store(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of a script, with a job that waits and one that is dead-lettered."""
    monkeypatch.setenv("HOME", str(workplace.directory))
    file = workplace.directory / "ergon.db"
    with JobClient(f"sqlite:///{file}") as client:
        client.enqueue("thumbs#shrink", id="waits-1", queue="slow")
        client.enqueue("thumbs#turn", id="broken `ls`")
    return file


class Shell:
    """A shell that asks for completions, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def offers(self, line: str, **environ: str) -> str:
        """What is offered at the end of a line."""
        words = line.split(" ")
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        for name, value in {**asked, **(environ or BASH)}.items():
            self._monkeypatch.setenv(name, value)
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            invoke([])
        captured = self._capsys.readouterr()
        assert (ended.value.code, captured.err) == (0, "")
        return captured.out

    def words(self, line: str) -> list[str]:
        """The words that bash gets."""
        return self.offers(line).split()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A shell."""
    return Shell(monkeypatch, capsys)


@pytest.mark.usefixtures("store")
def test_names_and_ids_of_the_store(shell: Shell) -> None:
    """Only what begins so; an id that a shell could run a part of is not offered."""
    assert shell.words("ergon jobs show ") == ["waits-1"]
    assert shell.words("ergon why wa") == ["waits-1"]
    assert shell.words("ergon why other") == []
    assert shell.words("ergon jobs audit --job w") == ["waits-1"]
    actions = ["requeue", "retry", "resume-queue", "resume-schedule", "retry-flow", "release-fact"]
    assert shell.words("ergon jobs audit --action re") == actions
    assert shell.words("ergon queues pause s") == ["slow"]
    assert shell.words("ergon jobs list --queue ") == ["default", "slow"]
    assert shell.words("ergon enqueue thumbs#s") == ["thumbs#shrink"]
    assert shell.words("ergon jobs list --status ret") == ["retrying"]
    assert shell.words("ergon dlq requeue ") == []
    assert shell.words("ergon schedules pause ") == []


def test_names_of_the_settings(shell: Shell, workplace: Workplace) -> None:
    """Tasks and zones, from a folder below too; a script can be run as well."""
    workplace.settings('[tasks.orders]\ntask = "shop:Orders"\n[zones.plant]\ndata = "d"\n')
    workplace.module("")
    assert shell.words("ergon run ") == ["orders", "plant", "shop.py"]
    assert shell.words("ergon tasks process o") == ["orders"]


def test_commands_are_offered_with_their_help(shell: Shell) -> None:
    """Those of before are not; zsh and fish show what each is."""
    assert shell.words("ergon w") == ["worker", "why"]
    assert '"why":"Explain a job' in shell.offers("ergon wh", _ERGON_COMPLETE="complete_zsh")
    assert shell.offers("ergon wh", _ERGON_COMPLETE="complete_fish").startswith("why\tExplain")


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("kind", ["zsh", "fish"])
def test_ids_are_offered_with_what_they_are(shell: Shell, kind: str) -> None:
    """The state and the handler of a job, which tell more than its id."""
    said = shell.offers("ergon jobs show w", _ERGON_COMPLETE=f"complete_{kind}")
    assert "waits-1" in said
    assert "pending thumbs#shrink" in said


HOSTILE = [
    *("$(touch pwned)", "\\$(touch pwned)", "`touch pwned`", "\\`touch pwned`", "a b", "it's"),
    *('say "x"', "*", "~root", "--help", "x;y", "[/]", "[bold", "!!", "é\xa0é", "<(ls)"),
]


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_no_shell_takes_a_name_for_anything_else(shell: Shell, store: Path, kind: str) -> None:
    """Neither a name that is offered, nor the text that is shown beside an id."""
    with JobClient(f"sqlite:///{store}") as client:
        for number, name in enumerate(HOSTILE):
            client.enqueue(name, id=f"odd-{number}", queue=name)
    complete = {"_ERGON_COMPLETE": f"complete_{kind}"}
    said = shell.offers("ergon jobs show odd-", **complete)
    for number in range(len(HOSTILE)):
        assert f"odd-{number}" in said
    for line in ("ergon queues pause ", "ergon enqueue ", "ergon jobs list --queue "):
        said += shell.offers(line, **complete)
    assert "slow" in said
    words = re.sub(r"^_arguments '\*: :\(\(|\)\)'$", "", said, flags=re.MULTILINE)
    words = re.sub(r'"([^"]*)"(:"([^"]*)")?', r"\1 \3", words) if kind == "zsh" else words
    assert not set("$`\\\"'();[]<>!~") & set(words.replace(r"\\:", ":")), words
    assert not re.search("^--help", words, re.MULTILINE)


def test_a_locked_store_keeps_nobody_waiting(shell: Shell, store: Path) -> None:
    """Another process has it for itself."""
    with closing(sqlite3.connect(store, isolation_level=None)) as locking:
        locking.execute("PRAGMA locking_mode = EXCLUSIVE")
        locking.execute("BEGIN EXCLUSIVE")
        began_at = time.monotonic()
        assert shell.words("ergon jobs show ") == []
        assert time.monotonic() - began_at < 3.0  # a store is waited for much longer elsewhere


def test_whatever_is_wrong_nothing_is_said(
    shell: Shell, workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No store, broken settings, a file that is no database, a server that is away."""
    monkeypatch.setenv("HOME", str(workplace.directory))
    assert shell.words("ergon jobs show ") == []
    (workplace.directory / "ergon.db").write_text("no database" * 100)
    assert shell.words("ergon jobs show ") == []
    workplace.settings("[store\n")
    assert shell.words("ergon jobs show ") == []
    assert shell.words("ergon run z") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        place = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        workplace.settings(f'[store]\nurl = "{place}"\n')
        assert shell.words("ergon queues pause ") == []
    assert sorted(each.name for each in workplace.directory.iterdir()) == ["ergon.db", "ergon.toml"]


def test_no_shell_waits_for_what_completion_does_not_need(store: Path) -> None:
    """Typer would import pydantic to convert the words before, and rich to show what each is."""
    line = "ergon jobs show "
    asked = {"_ERGON_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ergon_framework.cli"],
        cwd=store.parent,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    imported = {each.rpartition("|")[2].strip() for each in done.stderr.splitlines()}
    assert "ergon_framework.jobs.store_urls" in imported
    assert not {each for each in imported if each.partition(".")[0] in ("pydantic", "rich")}
