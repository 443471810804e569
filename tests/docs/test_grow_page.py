"""The page about growing is followed step by step, with a real server where it needs one."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from tests.docs.pages import ROOT, blocks
from tests.docs.programs import run_python

pytestmark = [pytest.mark.req("SCALE:docs"), pytest.mark.slow]
PAGE = ROOT / "docs" / "howto" / "grow-to-postgresql.md"


def followed(url: str) -> list[str]:
    """Write the files of the page and run its commands in order; what its programs print."""
    printed = []
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        if block.file is not None:
            Path(block.file).write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "sh":
            for line in block.text.replace('"$WORK_STORE"', shlex.quote(url)).splitlines():
                program, *words = shlex.split(line, comments=True)
                if program == "ergon":
                    assert invoke(words) == 0, line
                elif program == "python":
                    done = run_python(*words, cwd=Path.cwd())
                    assert done.returncode == 0, done.stderr
                    printed.append(done.stdout.strip())
    return printed


def test_the_step_to_a_server_is_one_command_and_one_line(
    tmp_path: Path,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Jobs and facts go on there: what was published before is known by its id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORK_STORE", postgres_url)
    printed = followed(postgres_url)
    shown = [
        each.text for each in blocks(PAGE.read_text(encoding="utf-8")) if each.language == "text"
    ]
    assert printed == shown == ["released at offset 1"] * 2
    told = capsys.readouterr().out
    assert "facts of plant" in told
    assert "[store]" in told
