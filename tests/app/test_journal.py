"""The journal of the settings: where it is, what goes into it, and what happens when it cannot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.journal import journal_of, journal_path, journalling
from ergon_framework.app.settings import load_settings
from ergon_framework.errors import SettingsError, StoreError
from ergon_framework.ports.journal import JournalQuery
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.telemetry.notices import emit, has_listeners
from tests import fork_server
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:notices")


def path_of(workplace: Workplace, text: str) -> Path | None:
    """Where the journal of such settings is."""
    workplace.settings(text)
    return journal_path(load_settings())


def test_it_lies_beside_the_settings(workplace: Workplace) -> None:
    """By default; a path of its own is relative to the settings, and "none" is none."""
    here = Path().absolute()
    assert path_of(workplace, "[telemetry]\nspans = true\n") == here / "ergon-journal.db"
    named = '[telemetry]\njournal = "sqlite:///logs/told.db"\n'
    assert path_of(workplace, named) == here / "logs/told.db"
    absolute = '[telemetry]\njournal = "sqlite:////var/told.db"\n'
    assert path_of(workplace, absolute) == Path("/var/told.db")
    assert path_of(workplace, '[telemetry]\njournal = "none"\n') is None


def test_without_settings_there_is_none(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the parent of the process named one."""
    assert journal_path(load_settings()) is None
    with journalling(load_settings(), "nobody") as writer:
        assert writer is None
        assert not has_listeners()
    monkeypatch.setenv("ERGON_JOURNAL", "sqlite:////tmp/parents.db")
    assert journal_path(load_settings()) == Path("/tmp/parents.db")  # noqa: S108 - not opened


@pytest.mark.parametrize("url", ["told.db", "sqlite://", "postgresql://x/y", "sqlite:///:memory:"])
def test_what_is_no_file_is_refused(workplace: Workplace, url: str) -> None:
    """The error says what to write."""
    with pytest.raises(SettingsError, match="sqlite:///ergon-journal"):
        path_of(workplace, f'[telemetry]\njournal = "{url}"\n')


def test_a_process_keeps_what_it_tells(workplace: Workplace) -> None:
    """Everything told inside is there when the context ends, routine things only if wanted."""
    workplace.settings("[telemetry]\njournal_most = 1000\n")
    for text in ("", "journal_all = true\n"):
        workplace.settings(f"[telemetry]\n{text}")
        with journalling(load_settings(), "worker w1"):
            emit("job.completed", job_id="j1")
            emit("job.late", job_id="j1")
        assert not has_listeners()
    journal = journal_of(load_settings())
    assert journal is not None
    with journal:
        told = [(each.name, each.source) for each in journal.read(JournalQuery())]
    assert told == [
        ("job.late", "worker w1"),
        ("job.completed", "worker w1"),
        ("job.late", "worker w1"),
    ]


def test_nothing_told_makes_no_file(workplace: Workplace) -> None:
    """A command that changes nothing leaves nothing behind."""
    workplace.settings("[telemetry]\nspans = true\n")
    with journalling(load_settings(), "operator"):
        pass
    assert journal_of(load_settings()) is None
    assert not Path("ergon-journal.db").exists()


def test_a_missing_folder_is_a_warning(
    workplace: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    """The work goes on without a journal."""
    workplace.settings('[telemetry]\njournal = "sqlite:///nowhere/told.db"\n')
    with journalling(load_settings(), "worker w1") as writer:
        assert writer is not None
        for _ in range(3):
            emit("job.late", job_id="j1")
            assert writer.flush(30.0)
    assert caplog.text.count("the journal cannot be written, and the work goes on") == 1
    assert not Path("nowhere").exists()


SETTINGS = f"""
[store]
url = "sqlite:///work.db"

[executors.python]
command = ["{sys.executable}", "-m", "ergon_framework.executor", "--app", "handlers:registry"]

[jobs]
default_executor = "python"
max_attempts = 1
"""
HANDLERS = """
from ergon_framework.executor import Registry
from ergon_framework.telemetry.notices import emit
registry = Registry()

@registry.handler("fail")
def fail(card):
    emit("key.lost", tenant_id="t", provider_name="rank", capability="snapshot")
    raise ValueError("no good")
"""


def ergon(place: Path, *words: str) -> str:
    """A command as a user runs it; what it printed."""
    done = fork_server.run(
        [sys.executable, "-m", "ergon_framework.cli", *words],
        cwd=place,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_in(place: Path) -> list[dict[str, Any]]:
    """The whole journal, as programs read it."""
    lines = ergon(place, "tail", "--no-follow", "--json").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
@pytest.mark.req("ONE:tail", "ONE:why")
def test_worker_executor_and_operator_tell_into_one_journal(tmp_path: Path) -> None:
    """What three processes told is in one file, and no argument of a job is."""
    (tmp_path / "ergon.toml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "handlers.py").write_text(HANDLERS, encoding="utf-8")
    ergon(tmp_path, "enqueue", "fail", "--args", '["4111-1111"]', "--id", "j1")
    ergon(tmp_path, "worker", "--burst", "--name", "w1")
    ergon(tmp_path, "queues", "pause", "default")
    told = told_in(tmp_path)
    assert "4111-1111" not in json.dumps(told)
    sources = {each["name"]: each["source"].partition(" ")[0] for each in told}
    assert sources["worker.started"] == sources["job.dead_lettered"] == "worker"
    assert sources["key.lost"] == "executor"
    assert sources["queue.paused"] == "operator"
    (dead,) = [each for each in told if each["name"] == "job.dead_lettered"]
    assert (dead["unit"], dead["source"]) == ("j1", "worker w1")
    assert dead["fields"]["failure"]["message"] == "no good"
    ergon(tmp_path, "dlq", "requeue", "j1")
    assert [each["name"] for each in told_in(tmp_path) if each["unit"] == "j1"][-1] == (
        "job.requeued"
    )


@pytest.mark.slow
def test_a_damaged_journal_harms_no_worker(tmp_path: Path) -> None:
    """One warning on the standard error stream; the job is done."""
    (tmp_path / "ergon.toml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "handlers.py").write_text(
        "from ergon_framework.executor import Registry\nregistry = Registry()\n"
        "registry.handler('fine')(lambda: 1)\n",
        encoding="utf-8",
    )
    (tmp_path / "ergon-journal.db").write_bytes(b"no database" * 500)
    ergon(tmp_path, "enqueue", "fine", "--id", "j1")
    ergon(tmp_path, "worker", "--burst")
    assert json.loads(ergon(tmp_path, "jobs", "show", "j1", "--json"))["status"] == "completed"
    with pytest.raises(StoreError):
        SqliteJournal(tmp_path / "ergon-journal.db", read_only=True)
