"""The two clients, the command and the schedules offer the same."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from ergon_framework.app.jobs import job_settings
from ergon_framework.cli.enqueue import enqueue
from ergon_framework.errors import JobNotFoundError, JobStateError, SettingsError
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.newjob import JobOptions
from ergon_framework.storage.urls import option_for, shown_url


def surface(kind: type) -> dict[str, list[str]]:
    """The public methods of a class, with the names of their parameters."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in methods
        if not name.startswith("_")
    }


@pytest.mark.req("JOBS:client")
def test_the_async_client_has_all_that_the_other_has() -> None:
    """Every public method, with the same parameters."""
    mine, theirs = surface(AsyncJobClient), surface(JobClient)
    assert {name: mine.get(name) for name in theirs} == theirs


@pytest.mark.req("JOBS:operator")
def test_the_command_has_all_that_a_client_may_say() -> None:
    """Every option of a job is one of ``ergon enqueue``."""
    names = {"job_id" if name == "id" else name for name in JobOptions.__annotations__}
    assert names - set(inspect.signature(enqueue).parameters) == set()


@pytest.mark.parametrize(("limit", "is_fine"), [(100, False), (3_000_000, True)])
def test_schedules_heed_max_payload(tmp_path: Path, limit: int, *, is_fine: bool) -> None:
    """A schedule may have as many arguments as the settings let a client enqueue, and no more."""
    config = tmp_path / "ergon.toml"
    size = 200 if limit < 200 else 2_000_000
    config.write_text(
        f'[store]\nurl = "sqlite:///w.db"\n[jobs]\nmax_payload = {limit}\n'
        f'[schedules.s]\nevery = 60\nhandler = "work"\nargs = ["{"x" * size}"]\n',
        encoding="utf-8",
    )
    if is_fine:
        assert "s" in job_settings(config).schedules
        return
    with pytest.raises(SettingsError, match=r"schedules\.s: args and kwargs take") as caught:
        job_settings(config)
    assert "max_payload" in (caught.value.remedy or "")


@pytest.mark.parametrize("kind", ["postgres_url", "redis_url"])
def test_the_command_in_an_error_names_a_store_on_a_server(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """It is pasted in a folder without settings, and finds the store."""
    url = request.getfixturevalue(kind)
    with JobClient(url) as client:
        flow = client.chain("work", client.wait_for_signal("go")).enqueue()
        with pytest.raises(JobStateError) as waits:
            flow.signal("nope")
        with pytest.raises(JobNotFoundError) as missing:
            client.status("missing")
    option = f"--store {shlex.quote(url)}"
    assert f"ergon why {flow} {option}" in (waits.value.remedy or "")
    assert f"ergon jobs list {option}" in (missing.value.remedy or "")
    assert option_for(client.store) == f" {option}"


def test_the_command_in_an_error_shows_no_password() -> None:
    """The user names the store, as it is named in a variable or in the settings."""
    store = SimpleNamespace(shown_url=shown_url("postgresql://me:secret@127.0.0.1/shop"))
    assert option_for(store) == ""
