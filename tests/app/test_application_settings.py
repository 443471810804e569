"""What the settings say about jobs: store, executors, schedules, and a worker made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ergon_framework.app.jobs import job_settings, resolve_url
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import (
    ConfigurationError,
    JobError,
    SettingsError,
    StoreUnavailableError,
)
from ergon_framework.jobs.newjob import new_job
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore

pytestmark = pytest.mark.req("JOBS:operator")
STORE = '[store]\nurl = "sqlite:///work.db"'
WHOLE = """
[store]
url = "sqlite:///work.db"

[executors.python]
command = ["ergon", "executor", "--app", "handlers:registry"]
pool_size = 2
max_in_flight = 1

[executors.js]
command = ["node", "executor.js"]
cwd = "js"

[jobs]
default_executor = "python"
max_attempts = 5
timeout = 300.0
backoff = { base = 5.0, multiplier = 2.0, cap = 3600.0, jitter = 0.1 }

[jobs.queues.mail]
max_active = 2
rate = 1.5

[schedules.nightly]
cron = "0 3 * * *"
handler = "clean"
"""


def written(directory: Path, text: str) -> Path:
    """A settings file."""
    file = directory / "ergon.toml"
    file.write_text(text)
    return file


def test_the_whole_of_it(tmp_path: Path) -> None:
    """Paths are relative to the settings file."""
    setup = job_settings(written(tmp_path, WHOLE), environ={})
    assert setup.url == f"sqlite:///{tmp_path / 'work.db'}"
    assert setup.jobs.max_attempts == 5
    assert setup.executors["python"].pool_size == 2
    assert setup.executors["python"].cwd == str(tmp_path)
    assert setup.executors["js"].cwd == str(tmp_path / "js")
    assert setup.schedules["nightly"].handler == "clean"


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ('[jobs]\nstore = "memory://"\n[store]\nurl = "sqlite:///w.db"\n', {}, "memory://"),
        ('[store]\nurl = "env:PLACE"\n', {"PLACE": "memory://"}, "memory://"),
        ('[jobs]\nstore = "env:PLACE"\n', {"PLACE": "memory://"}, "memory://"),
        ("", {"ERGON_STORE__URL": "memory://"}, "memory://"),
        ("", {"ERGON_JOBS__STORE": "memory://"}, "memory://"),
    ],
)
def test_a_store_of_ones_own_comes_first(
    tmp_path: Path, text: str, environ: dict[str, str], expected: str
) -> None:
    """Secrets are open where they are used."""
    setup = job_settings(written(tmp_path, text), environ=environ)
    assert setup.url == expected
    assert job_settings(setup.file, "sqlite:////x.db", environ).url == "sqlite:////x.db"


def test_a_url_with_a_password_is_not_shown(tmp_path: Path) -> None:
    """Neither by the setup nor by the settings in it."""
    text = '[jobs]\nstore = "postgresql://me:hunter2@127.0.0.1:1/db"\n'
    setup = job_settings(written(tmp_path, text), environ={})
    assert "hunter2" in setup.url
    assert "hunter2" not in repr(setup)
    with pytest.raises(StoreUnavailableError) as caught:
        setup.client()
    assert "hunter2" not in str(caught.value)


def test_no_store_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to write, and where one looked."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"there is no settings file .*under \[store\]"):
        job_settings(environ={})
    file = written(tmp_path, "[jobs]\n")
    with pytest.raises(SettingsError, match=r"ergon\.toml names none"):
        job_settings(file, environ={})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[jobs]\nmax_atempts = 3\n", ":2: jobs.max_atempts"),
        ("[executors.x]\ncommand = 'node'\n", "must be a list of words"),
        ("[executors.x]\n", "command is missing"),
        ("[executors.'a b']\ncommand = ['x']\n", "must be a name"),
        ("[schedules.x]\ncron = '61 * * * *'\nhandler = 'h'\n", "schedules.x.cron"),
        ("[schedules.x]\ncron = '0 0 30 2 *'\nhandler = 'h'\n", "schedules.x.cron"),
    ],
)
def test_mistakes_are_told_with_their_lines(tmp_path: Path, text: str, told: str) -> None:
    """As in every other section."""
    with pytest.raises(SettingsError) as caught:
        job_settings(written(tmp_path, text), environ={})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///work.db", "sqlite:////base/work.db"),
        ("SQLite:///a/b.db", "sqlite:////base/a/b.db"),
        ("sqlite:////abs/w.db", "sqlite:////abs/w.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///", "sqlite:///"),
        ("memory://", "memory://"),
        ("", ""),
    ],
)
def test_only_relative_files_are_moved(url: str, expected: str) -> None:
    """What cannot be understood is left to the store's own error."""
    assert resolve_url(url, Path("/base")) == expected


def test_limits_of_queues_go_into_the_store(tmp_path: Path) -> None:
    """All workers heed them, whatever settings they have."""
    setup = job_settings(written(tmp_path, WHOLE), environ={})
    store = MemoryJobStore()
    setup.limit_queues(store)
    (queue,) = store.queues()
    assert (queue.name, queue.max_active, queue.rate) == ("mail", 2, 1.5)


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize("table", ["queues.{}", "routes"])
@pytest.mark.parametrize("name", ["a\nb", "", " a", "a ", "\x85b", "a\u2028", "é" * 256])
def test_a_queue_that_no_job_can_name_is_refused(tmp_path: Path, table: str, name: str) -> None:
    """In one line with the words that a client hears, under the key as it was written."""
    with pytest.raises(JobError) as told:
        new_job("h", queue=name)
    key = json.dumps(name, ensure_ascii=False)
    text = f"[jobs.{table.format(key)}]" + (f'\n{key} = "python"' if table == "routes" else "")
    with pytest.raises(SettingsError) as refused:
        job_settings(written(tmp_path, f"{STORE}\n{text}\n"), environ={})
    assert told.value.message.removeprefix("queue ") in refused.value.message
    assert str(told.value.remedy) in refused.value.message
    shown = name if len(name) > 9 else json.dumps(name)
    assert f".{shown}: " in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("name", ["é", "a b", "a.b", "😀", "x" * 255])
def test_any_queue_that_a_job_can_name_may_be_limited(tmp_path: Path, name: str) -> None:
    """Settings are no stricter than clients."""
    text = f"{STORE}\n[jobs.queues.{json.dumps(name, ensure_ascii=False)}]\nmax_active = 1\n"
    setup = job_settings(written(tmp_path, text), environ={})
    assert [*setup.jobs.queues] == [new_job("h", queue=name).queue] == [name]


def test_a_queue_with_nothing_but_times_keeps_the_limits_that_an_operator_set(
    tmp_path: Path,
) -> None:
    """A table that speaks of retention says nothing of limits; an empty one lifts them."""
    text = f"{STORE}\n[jobs.queues.mails]\nfailed_ttl = 7776000\n[jobs.queues.other]\n"
    setup = job_settings(written(tmp_path, text), environ={})
    store = MemoryJobStore()
    for name in ("mails", "other"):
        store.set_queue(name, max_active=3)
    setup.limit_queues(store)
    assert [(each.name, each.max_active) for each in store.queues()] == [("mails", 3)]
    assert setup.jobs.retention.keep("mails", JobStatus.FAILED) == 7_776_000.0
    assert setup.jobs.retention.keep("mails", JobStatus.COMPLETED) == setup.jobs.result_ttl


def test_defaults_without_any_section() -> None:
    """A URL is enough."""
    setup = job_settings("/dev/null", "memory://", {})
    assert setup.jobs == JobsSettings()
    assert (setup.executors, setup.schedules) == ({}, {})
    with pytest.raises(ConfigurationError, match="no executor is configured"):
        setup.worker(setup.client().store)
