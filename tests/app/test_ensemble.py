"""The parts of a settings file: what a name means, what is started, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.app.parts import (
    Part,
    PartKind,
    part_named,
    process_specs,
    rows,
    shown_url,
    startable,
)
from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.errors import WiringError

pytestmark = pytest.mark.req("ONE:run")

TEXT = """
[store]
url = "sqlite:///work.db"

[tasks.orders]
task = "shop:Orders"
connectors = ["inbox"]
workers = 2

[tasks.plant]
task = "shop:Plant"

[tasks.worker]
task = "shop:Worker"

[connectors.inbox]
type = "memory"

[zones.plant]
data = "plant"
listen = "127.0.0.1:9441"
peers = { office = "http://127.0.0.1:9442" }

[zones.office]
listen = "127.0.0.1:9442"

[executors.python]
command = ["python3", "--token", "hunter2"]
pool_size = 3

[schedules.report]
cron = "@daily"
handler = "report"

[providers.mail]
provider = "shop:Mail"
store = "postgresql://shop:hunter2@db.example.org:5432/calls?password=hunter2"

[server]
port = 8400
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a part of every kind."""
    file = tmp_path / "ergon.toml"
    file.write_text(TEXT)
    return load_settings(file, environ={})


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("orders", Part(PartKind.TASK, "orders", 2)),
        ("tasks.orders", Part(PartKind.TASK, "orders", 2)),
        ("tasks.plant", Part(PartKind.TASK, "plant")),
        ("zones.plant", Part(PartKind.ZONE, "plant")),
        ("office", Part(PartKind.ZONE, "office")),
        ("tasks.worker", Part(PartKind.TASK, "worker")),
        ("server", Part(PartKind.SERVER, "server")),
        ("other.module:Task", Part(PartKind.TASK, "other.module:Task")),
    ],
)
def test_what_a_name_means(settings: Settings, text: str, part: Part) -> None:
    """A part by its name, or by its name with its section."""
    assert part_named(text, settings) == part


BOTH = "'plant' means the task 'tasks.plant' and the zone 'zones.plant'"
TWO = "'worker' means the task 'tasks.worker' and the worker 'worker'"
NAMES = "or a name from [tasks] or [zones]"
NONE = "there is no task 'ordres' in the settings, and no other part; did you mean 'orders'?"


@pytest.mark.parametrize(
    ("text", "told", "remedy"),
    [
        ("plant", BOTH, "write tasks.plant or zones.plant"),
        ("worker", TWO, "write tasks.worker or ergon worker"),
        (
            "ordres",
            NONE,
            f"write module:app or script.py:app for an App, module:Class for a task, {NAMES}",
        ),
    ],
)
def test_a_name_that_means_nothing_or_two_things(
    settings: Settings, text: str, told: str, remedy: str
) -> None:
    """Nobody guesses."""
    with pytest.raises(WiringError) as caught:
        part_named(text, settings)
    assert (caught.value.message, caught.value.remedy) == (told, remedy)


def test_what_all_means(settings: Settings) -> None:
    """A zone without data is only an address; workers of a task are processes of their own."""
    posts = process_specs(startable(settings))
    assert [post.name for post in posts] == [
        "server",
        "zones.plant",
        "worker",
        "tasks.orders#0",
        "tasks.orders#1",
        "tasks.plant",
        "tasks.worker",
    ]
    orders = [post for post in posts if post.target == "tasks.orders"]
    assert [(post.number, post.of, post.is_endless) for post in orders] == [
        (0, 2, False),
        (1, 2, False),
    ]
    assert [post.stop_rank for post in posts] == [3, 2, 1, 0, 0, 0, 0]
    assert [post.start_rank for post in posts] == [0, 0, 0, 1, 1, 1, 1]


def test_without_settings_there_is_nothing() -> None:
    """No part is made up: a server is started when somebody asked for one."""
    assert startable(Settings()) == []


@pytest.mark.req("ONE:secrets")
def test_the_table_shows_no_secret(settings: Settings) -> None:
    """Of a URL its place, of a command its program."""
    told = [list(row.to_dict().values()) for row in rows(settings)]
    assert "hunter2" not in str(told)
    assert told == [
        ["server", "server", "HTTP", "http://127.0.0.1:8400", 1],
        ["zone", "plant", "pulls from office", "127.0.0.1:9441", 1],
        ["worker", "worker", "executors python; schedules 1", "sqlite:///work.db", 1],
        ["task", "orders", "shop:Orders", "inbox (memory)", 2],
        ["task", "plant", "shop:Plant", "", 1],
        ["task", "worker", "shop:Worker", "", 1],
        ["executor", "python", "python3", "", 3],
        ["schedule", "report", "report", "@daily UTC", None],
        ["provider", "mail", "shop:Mail", "postgresql://db.example.org:5432/calls", None],
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///work.db", "sqlite:///work.db"),
        ("memory://", "memory://"),
        ("postgresql://u:p@h/d", "postgresql://h/d"),
        ("postgresql://u:p@[h/d", "***"),
        ("hunter2", "***"),
    ],
)
@pytest.mark.req("ONE:secrets")
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    """Nothing but its kind and its place."""
    assert shown_url(url) == shown
