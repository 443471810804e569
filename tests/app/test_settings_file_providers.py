"""A provider by its name: one in each process, in a task as well as in an executor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app import providers
from ergon_framework.app.jobs import job_settings
from ergon_framework.app.lifespan import open_task
from ergon_framework.app.providers import provider
from ergon_framework.errors import SettingsError
from ergon_framework.providers.execution import ProviderExecutionContext
from tests.app.processes import SOURCE
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:settings")

SHOP = """
from ergon_framework.providers.base import ProviderBase


class Mail(ProviderBase):
    provider_name = "mail"
    capability = "send"

    def __init__(self, key, **options):
        self.key = key
        super().__init__(**options)

    def _execute_impl(self, **call):
        return {"sent": call["payload"]}


class Orders(ConsumerTask):
    def process_transaction(self, transaction):
        return self.services["mail"].key
"""
SETTINGS = """
[store]
url = "sqlite:///work.db"

[providers.mail]
provider = "shop:Mail"
key = "text:k1"

[connectors.inbox]
type = "memory"

[tasks.orders]
task = "shop:Orders"
connectors = ["inbox"]
services = ["mail"]

[executors.python]
command = ["python3"]
env = { COLOUR = "red" }
"""


@pytest.fixture
def shop(workplace: Workplace) -> Iterator[Workplace]:
    """A working directory with a provider in its settings."""
    workplace.module(SHOP)
    workplace.settings(SETTINGS)
    yield workplace
    providers.close_all()


def call(found: Any) -> Any:
    """What one call gives."""
    return found.execute(
        tenant_id="t",
        campaign_id=None,
        operation="send",
        payload={"n": 1},
        context=ProviderExecutionContext(),
    )


def test_a_process_has_one_of_each_name(shop: Workplace) -> None:
    """However many threads ask at once, and it works."""
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(provider("mail"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert found[0].key == "k1"
    assert call(found[0]).data == {"sent": {"n": 1}}
    assert provider("mail", shop.directory / "ergon.toml") is found[0]
    assert (shop.directory / "work.db").exists()


def test_an_unknown_name_is_refused(shop: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names there are, or that there is no file."""
    with pytest.raises(SettingsError, match=r"there is no provider 'male'.* did you mean 'mail'"):
        provider("male")
    (shop.directory / "empty").mkdir()
    monkeypatch.chdir(shop.directory / "empty")
    with pytest.raises(SettingsError, match=r"there is no settings file.*none is defined"):
        provider("mail")


def test_a_task_gets_it_as_a_service(shop: Workplace) -> None:
    """The same one that everybody else in the process has."""
    with open_task(shop.wire("orders")) as task:
        assert task.services["mail"] is provider("mail")
    assert call(provider("mail")).data  # the end of a task is not its end


def test_a_service_of_that_name_comes_first(shop: Workplace) -> None:
    """A name means one thing."""
    shop.settings(SETTINGS + '[services.mail]\nfactory = "builtins:dict"\n')
    with open_task(shop.wire("orders")) as task:
        assert task.services["mail"] == {}


def test_executors_are_told_where_the_settings_are(shop: Workplace, tmp_path: Path) -> None:
    """Their own variables stay, and may name another file."""
    env = job_settings("ergon.toml").executors["python"].env
    assert env == {"COLOUR": "red", "ERGON_CONFIG": str(tmp_path / "ergon.toml")}
    shop.settings(SETTINGS.replace('"red" }', '"red", ERGON_CONFIG = "other.toml" }'))
    assert job_settings("ergon.toml").executors["python"].env["ERGON_CONFIG"] == "other.toml"


@pytest.mark.slow
def test_another_process_finds_it_by_its_variable(shop: Workplace) -> None:
    """As an executor in another folder does; what it wrote is in the store when it ends."""
    program = (
        "import json, os\n"
        "from ergon_framework.app.providers import provider\n"
        "from ergon_framework.providers.execution import ProviderExecutionContext\n"
        "os.chdir('/')\n"
        "found = provider('mail')\n"
        "result = found.execute(tenant_id='t', campaign_id=None, operation='send', payload={},"
        " context=ProviderExecutionContext())\n"
        "print(json.dumps([found.key, result.data]))\n"
    )
    path = os.pathsep.join([str(SOURCE), str(shop.directory)])
    env = {**os.environ, "ERGON_CONFIG": str(shop.directory / "ergon.toml"), "PYTHONPATH": path}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], env=env, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["k1", {"sent": {}}]
    assert [lane.key.provider_name for lane in provider("mail").health("t")] == ["mail"]
