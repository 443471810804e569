"""Building, opening and closing, in order and in reverse."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ergon_framework.app.factories import StartError
from ergon_framework.app.imports import load
from ergon_framework.app.lifespan import open_task, open_task_async
from ergon_framework.app.run_parts import Run
from ergon_framework.errors import ErgonError, WiringError
from tests.app.workplace import Workplace

MODULE = """
SEEN = []

class Part:
    def __init__(self, name, fails=""):
        self.name = name
        self.fails = fails
        self.note("make")

    def note(self, what):
        SEEN.append(f"{what} {self.name}")
        if what == self.fails:
            raise ConnectionError("no route")

    def fetch_transactions(self, batch_size, **extra):
        return []

    async def fetch_transactions_async(self, batch_size, **extra):
        return []

class Opened(Part):
    def open(self):
        self.note("open")

    def close(self):
        self.note("close")

class AsyncOpened(Part):
    async def init_async(self):
        self.note("open")

    async def aclose(self):
        self.note("close")

class Ready(Part):
    def close(self):
        self.note("close")

class CoroutineOpen(Part):
    async def open(self):
        self.note("open")

class Orders(ConsumerTask):
    def __init__(self, connectors, services):
        super().__init__(connectors, services)
        SEEN.append("task")

    def process_transaction(self, transaction):
        return None

class AsyncOrders(AsyncConsumerTask):
    async def process_transaction(self, transaction):
        return None
"""


@pytest.fixture
def seen(workplace: Workplace) -> list[str]:
    """What happened to the parts."""
    workplace.module(MODULE)
    return seen_in("shop")


def seen_in(module: str) -> list[str]:
    """What happened to the parts of a module."""
    seen: list[str] = load(f"{module}:SEEN")
    return seen


def settings(*parts: tuple[str, str], task: str = "Orders") -> str:
    """A settings file with these connectors, and one of the task's services."""
    tables = [f'[tasks.it]\ntask = "shop:{task}"\nservices = ["mail"]\nconnectors = [']
    tables[0] += ", ".join(f'"{name}"' for name, _ in parts) + "]\n"
    tables[0] += f'consumer.steps.fetch.connector_name = "{parts[0][0]}"\n'
    for name, words in parts:
        kind, _, fails = words.partition(" ")
        tables.append(f'[connectors.{name}]\ntype = "shop:{kind}"\nname = "{name}"\n')
        tables[-1] += f'fails = "{fails}"\n'
    return "\n".join([*tables, '[services.mail]\nfactory = "shop:Opened"\nname = "mail"\n'])


@pytest.mark.req("R2-DI1", "R2-DI2", "R2-DI3", "R0-R")
def test_parts_are_open_before_the_task_exists(workplace: Workplace, seen: list[str]) -> None:
    """The task is made last, is given both groups by name, and its parts are closed in reverse."""
    workplace.settings(settings(("a", "Opened"), ("b", "Ready")))
    with open_task(workplace.wire("it")) as task:
        assert list(task.connectors) == ["a", "b"]
        assert task.services["mail"].name == "mail"
        assert task.b_connector is task.connectors["b"]
        assert seen == ["make a", "make b", "make mail", "open a", "open mail", "task"]
        seen.clear()
    assert seen == ["close mail", "close a", "close b"]


@pytest.mark.req("R2-DI3", "R0-R")
def test_parts_of_an_async_task(workplace: Workplace, seen: list[str]) -> None:
    """Coroutines are preferred, plain methods are called where there are none."""
    workplace.settings(settings(("a", "AsyncOpened"), ("b", "Opened"), task="AsyncOrders"))

    async def body() -> None:
        async with open_task_async(workplace.wire("it")):
            seen.append("body")

    asyncio.run(body())
    assert seen[3:] == ["open a", "open b", "open mail", "body", "close mail", "close b", "close a"]


def test_a_part_that_cannot_be_opened(workplace: Workplace, seen: list[str]) -> None:
    """What was begun before is closed again, the failed one included; the rest is not touched."""
    workplace.settings(settings(("a", "Opened"), ("b", "Opened open"), ("c", "Opened")))
    told = "connector 'b' could not be opened: ConnectionError: no route"
    with pytest.raises(StartError, match=told), open_task(workplace.wire("it")):
        pass
    assert seen[4:] == ["open a", "open b", "close b", "close a"]


def test_an_async_part_that_cannot_be_opened(workplace: Workplace, seen: list[str]) -> None:
    """The same with coroutines."""
    parts = (("a", "AsyncOpened"), ("b", "AsyncOpened open"))
    workplace.settings(settings(*parts, task="AsyncOrders"))

    async def body() -> None:
        async with open_task_async(workplace.wire("it")):
            pass

    with pytest.raises(StartError):
        asyncio.run(body())
    assert seen[3:] == ["open a", "open b", "close b", "close a"]


def test_a_part_that_cannot_be_made(workplace: Workplace, seen: list[str]) -> None:
    """Parts that are ready when made are closed; those never opened are left alone."""
    workplace.settings(settings(("a", "Ready"), ("b", "Opened"), ("c", "Opened make")))
    with pytest.raises(StartError, match="could not be made"), open_task(workplace.wire("it")):
        pass
    assert seen == ["make a", "make b", "make c", "close a"]


@pytest.mark.parametrize("task", ["Orders", "AsyncOrders"])
def test_a_part_that_cannot_be_closed(
    workplace: Workplace, seen: list[str], task: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the others are closed and the run is not failed by it."""
    workplace.settings(settings(("a", "Opened"), ("b", "Opened close"), task=task))

    async def body() -> None:
        async with open_task_async(workplace.wire("it")):
            seen.clear()

    with caplog.at_level(logging.ERROR):
        if task == "Orders":
            with open_task(workplace.wire("it")):
                seen.clear()
        else:
            asyncio.run(body())
    assert seen == ["close mail", "close b", "close a"]
    assert "connector 'b' could not be closed: ConnectionError: no route" in caplog.text


def test_the_work_fails_and_parts_are_closed(workplace: Workplace, seen: list[str]) -> None:
    """Whatever ends the run, nothing stays open."""
    workplace.settings(settings(("a", "Opened")))
    with pytest.raises(RuntimeError), open_task(workplace.wire("it")):
        raise RuntimeError
    assert seen[-2:] == ["close mail", "close a"]


@pytest.mark.req("T3.35")
def test_a_coroutine_cannot_open_for_a_sync_task(workplace: Workplace, seen: list[str]) -> None:
    """It is refused before any other part is opened."""
    workplace.settings(settings(("a", "Opened"), ("b", "CoroutineOpen")))
    told = "open is a coroutine function"
    with pytest.raises(WiringError, match=told), open_task(workplace.wire("it")):
        pass
    assert "open a" not in seen


def test_a_part_with_two_names_is_opened_once(workplace: Workplace) -> None:
    """A builder may give the same object twice."""
    workplace.module(
        MODULE
        + """
class Both(Orders):
    @classmethod
    def build_connectors(cls):
        part = Opened("it")
        return {"a": part, "b": part}

    @staticmethod
    def build_services():
        return {"mail": Opened("mail")}

policy = ConsumerPolicy(steps={"fetch": {"connector_name": "b"}})
""",
        "twice",
    )
    with open_task(workplace.wire("twice:Both")):
        pass
    seen = seen_in("twice")
    assert seen.count("open it") == seen.count("close it") == 1
    assert "open mail" in seen


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ("return 3", WiringError, r"Both.build_connectors\(\) gave int, not a mapping"),
        ("raise OSError('down')", StartError, "could not be made: OSError: down"),
        ("return {'a': 1, 'b': 2}", WiringError, "several connectors"),
        ("return {'a': 1}", WiringError, "has no fetch_transactions"),
    ],
)
def test_builders_that_give_the_wrong_thing(
    workplace: Workplace, body: str, error: type[Exception], text: str
) -> None:
    """What only the built parts show is refused before any of them is opened."""
    code = f"class Both(Orders):\n    @staticmethod\n    def build_connectors():\n        {body}\n"
    workplace.module(MODULE + code)
    with pytest.raises(error, match=text), open_task(workplace.wire("shop:Both")):
        pass


def test_secrets_do_not_leave_with_errors(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that repeats an option's value shows stars instead."""
    workplace.module(
        MODULE
        + """
class Secretive(Part):
    def __init__(self, url):
        raise ValueError(f"cannot parse {url}")
"""
    )
    monkeypatch.setenv("INBOX_URL", "amqp://user:hunter2@host")
    workplace.settings('[connectors.a]\ntype = "shop:Secretive"\nurl = "env:INBOX_URL"\n')
    wiring = Run("shop:Orders").wired()
    assert "hunter2" not in repr(wiring)
    with pytest.raises(WiringError) as caught, open_task(wiring):
        pass
    assert "hunter2" not in str(caught.value)
    assert "cannot parse ***" in str(caught.value)


def test_secrets_do_not_leave_with_errors_of_opening_and_closing(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those are no other: a password that looks like a word is known by the settings."""
    workplace.module(
        MODULE
        + """
class Secretive(Part):
    def __init__(self, word):
        super().__init__("it")
        self.word = word

    def open(self):
        raise OSError(f"not with {self.word}")

    def close(self):
        raise OSError(f"not with {self.word} either")
"""
    )
    monkeypatch.setenv("INBOX_WORD", "hunter2")
    workplace.settings('[connectors.a]\ntype = "shop:Secretive"\nword = "env:INBOX_WORD"\n')
    with (
        pytest.raises(StartError, match=r"OSError: not with \*\*\*"),
        open_task(Run("shop:Orders").wired()),
    ):
        pass
    assert "not with *** either" in caplog.text
    assert "hunter2" not in caplog.text


def test_what_a_connector_refuses_is_told_with_its_name(workplace: Workplace) -> None:
    """The connector's own error, with the table it comes from before it."""
    workplace.module(MODULE)
    workplace.settings('[connectors.inbox]\ntype = "jsonl"\ninbox = "nowhere"\n')
    told = r"connector 'inbox' \(jsonl\): the inbox nowhere is not a directory"
    with pytest.raises(ErgonError, match=told), open_task(workplace.wire()):
        pass


def test_an_instance_is_taken_as_it_is(workplace: Workplace) -> None:
    """Its own connectors are opened and closed like built ones."""
    workplace.module(MODULE + "task = Orders({'a': Opened('a')}, {})\n", "instance")
    with open_task(workplace.wire("instance:task")) as task:
        assert task is load("instance:task")
    assert seen_in("instance") == ["make a", "task", "open a", "close a"]
