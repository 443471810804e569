"""What of a worker's environment its executors get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.app.jobs import job_settings, setup_of
from ergon_framework.app.providers import provider_factory
from ergon_framework.app.settings import load_settings
from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs.child_process import executor_environment
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.providers.base import ProviderBase
from tests.jobs.real_worker import PROGRAMS, get, job, quick, unruly, worker

WORKER = {
    "PATH": "/bin",
    "LC_ALL": "C",
    "AWS_PROFILE": "shop",
    "SHOP_DEBUG": "1",
    "DATABASE_URL": "postgresql://me:pw@db/shop",
    "ERGON_SERVER_TOKEN": "t0ken",
    "ergon_store__url": "postgresql://me:pw2@db/shop",
    "ERGON_LOG_LEVEL": "INFO",
    "ERGON_FAILPOINTS": "x",
}
SETTINGS = """
[store]
url = "env:DATABASE_URL"
[server]
token = "env:SHOP_TOKEN"
[executors.python]
command = ["python", "x.py"]
"""


def got(**options: Any) -> dict[str, str]:
    """What an executor gets of that environment."""
    settings = ExecutorSettings(command=("x",), **options)
    return executor_environment(WORKER, settings, {"DATABASE_URL"})


def test_secrets_of_ours_are_kept_back() -> None:
    """Everything else is handed down, as handlers rely on it."""
    found = got(env={"SHOP": "mine"})
    withheld = found.pop("ERGON_WITHHELD").split(",")
    assert withheld == [
        *("DATABASE_URL", "ERGON_FAILPOINTS", "ERGON_SERVER_TOKEN", "ergon_store__url")
    ]
    kept = ("PATH", "LC_ALL", "AWS_PROFILE", "SHOP_DEBUG", "ERGON_LOG_LEVEL")
    assert found == {name: WORKER[name] for name in kept} | {"SHOP": "mine"}


def test_a_setting_hands_secrets_down() -> None:
    """Some, or all."""
    some = got(pass_secrets=["DATABASE_URL"])
    assert some["DATABASE_URL"] == WORKER["DATABASE_URL"]
    assert "ERGON_SERVER_TOKEN" not in some
    assert got(pass_secrets=["*"]) == WORKER


def test_an_allowlist_is_one_setting() -> None:
    """With what every program needs; a name in it does not free a secret."""
    found = got(pass_env=["AWS_*", "DATABASE_URL"])
    found.pop("ERGON_WITHHELD")
    assert sorted(found) == ["AWS_PROFILE", "ERGON_LOG_LEVEL", "LC_ALL", "PATH"]


def test_the_settings_say_which_variables_they_read(tmp_path: Path) -> None:
    """And can be read where these were kept back; the store cannot be opened there."""
    file = tmp_path / "ergon.toml"
    file.write_text(SETTINGS)
    mine = {name: value for name, value in WORKER.items() if not name.startswith("ergon_")}
    secrets = {"DATABASE_URL": "sqlite:///a.db", "SHOP_TOKEN": "0123456789abcdef0123456789abcdef"}
    setup = job_settings(file, environ={**mine, **secrets})
    assert setup.read_elsewhere == {"DATABASE_URL", "SHOP_TOKEN"}
    given = executor_environment(
        {**mine, **secrets}, setup.executors["python"], setup.read_elsewhere
    )
    assert not [name for name, value in given.items() if value in secrets.values()]
    assert job_settings(file, environ=given).url.startswith("withheld-DATABASE_URL")


def test_a_store_that_a_variable_names_is_not_mistaken_for_that_of_the_file(
    tmp_path: Path,
) -> None:
    """Who did not get the variable must not keep anything in the store that it replaces."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///here.db"\n[executors.a]\ncommand = ["x"]\n')
    mine = {"ERGON_STORE__URL": "postgresql://me:pw@db/shop", "PATH": "/bin"}
    setup = job_settings(file, environ=mine)
    given = executor_environment(mine, setup.executors["a"], setup.read_elsewhere)
    assert "postgresql" not in str(given)
    assert job_settings(file, environ=given).url.startswith("withheld-ERGON_STORE__URL")


PROVIDER = """
[store]
url = "env:DATABASE_URL"
[providers.mail]
provider = "tests.jobs.test_environment:Mail"
key = "env:MAIL_KEY"
[executors.a]
command = ["x"]
"""


class Mail(ProviderBase):
    """A provider with a secret."""

    provider_name = "mail"
    capability = "send"

    def __init__(self, *, key: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self.key = key

    def _execute_impl(self, **_call: Any) -> dict[str, Any]:
        return {"key": self.key}


@pytest.mark.parametrize(
    ("worker_has", "handed", "missing"),
    [
        ({}, ["MAIL_KEY"], "DATABASE_URL"),
        ({}, ["DATABASE_URL"], "MAIL_KEY"),
        ({"ERGON_PROVIDERS__MAIL__KEY": "k2"}, ["MAIL_KEY", "DATABASE_URL"], None),
        ({"ERGON_PROVIDERS__STORE": "memory://"}, ["MAIL_KEY", "DATABASE_URL"], None),
        ({}, ["*"], ""),
    ],
)
def test_a_handler_is_told_which_setting_gives_it_a_secret(
    tmp_path: Path, worker_has: dict[str, str], handed: list[str], missing: str | None
) -> None:
    """Opening a store, and making a provider, names the variable and ``pass_secrets``."""
    file = tmp_path / "ergon.toml"
    file.write_text(PROVIDER)
    mine = {"DATABASE_URL": f"sqlite:///{tmp_path}/a.db", "MAIL_KEY": "k", **worker_has}
    setup = job_settings(file, environ=mine)
    executor = setup.executors["a"].model_copy(update={"pass_secrets": tuple(handed)})
    given = executor_environment(mine, executor, setup.read_elsewhere)
    settings = load_settings(file, given)
    if missing == "":
        provider_factory("mail", settings).make().close()
        return
    name = missing or next(iter(worker_has))
    with pytest.raises(ConfigurationError, match=rf'pass_secrets = \["{name}"\]') as raised:
        provider_factory("mail", settings).make()
    assert name in raised.value.message
    if name == "DATABASE_URL":
        with pytest.raises(ConfigurationError, match=r'pass_secrets = \["DATABASE_URL"\]'):
            open_store(setup_of(settings).url)


@pytest.mark.slow
def test_a_real_executor_sees_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even in what it hands on to programs that it starts."""
    monkeypatch.setenv("ERGON_SERVER_TOKEN", "t0ken")
    monkeypatch.setenv("SHOP_SECRET", "s3cret")
    monkeypatch.setenv("SHOP_DEBUG", "1")
    store = MemoryJobStore()
    store.add([job("environment")])
    executor = unruly()
    subject = worker(
        store, executor=executor, burst=True, settings=quick(), read_elsewhere={"SHOP_SECRET"}
    )
    subject.run()
    seen = msgspec.json.decode(get(store, "environment").result or b"{}")
    assert seen["SHOP_DEBUG"] == "1"
    assert "ERGON_SERVER_TOKEN" not in seen
    assert "SHOP_SECRET" not in seen
    assert PROGRAMS.is_dir()
