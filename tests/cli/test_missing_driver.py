"""Commands on a store whose driver is not installed: each of them names the extra."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.web.content import fill_jobs

pytestmark = [pytest.mark.req("SCALE:url-errors"), pytest.mark.slow]

URL = "postgresql://me:hunter2@127.0.0.1:1/work"
EXTRA = "pip install 'ergon-framework[postgres]'"
SHARED = f'[store]\nurl = "{URL}"\n'
PROVIDER = '[providers.p]\nprovider = "ergon_framework.providers.synthetic:SyntheticProvider"\n'
ZONE = f'[zones.plant]\nstore = "{URL}"\nobjects = "objects"\n'
# A process of its own: here, modules that need the driver may have been imported long ago.
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from ergon_framework.cli import invoke
for number, line in enumerate(sys.stdin.read().splitlines()):
    print(f"== {number}", flush=True)
    print(f"== {number}", file=sys.stderr, flush=True)
    print("code", invoke(line.split()), flush=True)
"""


def told(
    folder: Path, settings: str, commands: list[str], missing: Sequence[str] = ("psycopg",)
) -> list[str]:
    """All that each command prints, with its exit code."""
    (folder / "ergon.toml").write_text(settings)
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", PROGRAM, *missing],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=True,
    )
    out, errors = (text.split("== ")[1:] for text in (done.stdout, done.stderr))
    assert len(out) == len(errors) == len(commands)
    return [f"{said}{trouble}" for said, trouble in zip(out, errors, strict=True)]


@pytest.mark.parametrize(
    ("settings", "commands"),
    [
        (SHARED, ["dlq list", "dlq show x", "providers health", "queues list", "db upgrade"]),
        (SHARED + PROVIDER, ["dlq list", "check"]),
        (ZONE, ["db upgrade", "db upgrade --sql", "db current", "check"]),
        ("", [f"move {URL} nats://127.0.0.1:1 --zone plant"]),
    ],
)
def test_the_extra_is_named(tmp_path: Path, settings: str, commands: list[str]) -> None:
    """Whatever a command looks at first."""
    for command, said in zip(commands, told(tmp_path, settings, commands), strict=True):
        assert "code 2" in said, command
        assert EXTRA in said, command
        assert "hunter2" not in said


@pytest.mark.req("SCALE:doctor")
@pytest.mark.parametrize("settings", [SHARED, SHARED + PROVIDER, ZONE])
def test_the_doctor_names_the_extra(tmp_path: Path, settings: str) -> None:
    """And goes on with the rest."""
    [said] = told(tmp_path, settings, ["doctor --json"])
    assert EXTRA in said
    assert "could not be looked at" not in said


def test_whoever_asks_why_is_told_what_could_not_be_asked(tmp_path: Path) -> None:
    """The answer may be elsewhere."""
    [said] = told(tmp_path, SHARED, ["why x"])
    assert "code 1" in said
    assert EXTRA in said


@pytest.mark.req("ONE:serve")
def test_what_a_terminal_shows_needs_no_package_of_the_server(tmp_path: Path) -> None:
    """The words are those of the console, which belongs to an extra."""
    fill_jobs(tmp_path, dead=2)
    missing = ("fastapi", "starlette", "jinja2", "uvicorn")
    commands = ["top --once", "dlq families"]
    top, families = told(tmp_path, '[store]\nurl = "sqlite:///work.db"\n', commands, missing)
    assert "code 0" in top
    assert "2 jobs have given up" in top
    assert "code 0" in families
    assert "expired" in families
