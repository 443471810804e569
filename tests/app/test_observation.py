"""Where the log goes, and what is flushed at the end."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from ergon_framework.app.console import say
from ergon_framework.app.observability import finish_telemetry, set_up_logging
from ergon_framework.cli.output import show_error
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.testing.clock import VirtualClock


def private_logger() -> logging.Logger:
    """A logger that nobody else knows, least of all pytest."""
    return logging.Logger("shop")  # noqa: LOG001


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per record, with the transaction it belongs to."""
    shop = private_logger()
    set_up_logging("info", "text", shop)
    shop.info("sold", extra={"transaction_id": "t1"})
    shop.debug("not shown")
    assert capsys.readouterr().err.endswith("INFO    shop: sold [t1]\n")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One object per record, for programs."""
    shop = private_logger()
    set_up_logging("warning", "json", shop)
    shop.warning("sold")
    assert json.loads(capsys.readouterr().err)["message"] == "sold"


def test_handlers_of_the_user_stay() -> None:
    """Who has set up logging keeps it as it is."""
    shop = private_logger()
    shop.setLevel(logging.ERROR)
    own = logging.NullHandler()
    shop.addHandler(own)
    set_up_logging("debug", "text", shop)
    assert (shop.handlers, shop.level) == ([own], logging.ERROR)


@pytest.mark.parametrize(("level", "format"), [("loud", "text"), ("info", "xml")])
def test_unknown_words(level: str, format: str) -> None:
    """They are refused with the known ones."""
    with pytest.raises(ConfigurationError, match="use one of"):
        set_up_logging(level, format)


class Provider:
    """Takes note of what is done to it, and may hang or break."""

    def __init__(self, flush: Callable[[], object] = lambda: None) -> None:
        self.flush = flush
        self.done: list[str] = []

    def force_flush(self) -> None:
        self.done.append("flush")
        self.flush()

    def shutdown(self) -> None:
        self.done.append("shutdown")


@pytest.mark.req("R0-R")
def test_providers_are_flushed_and_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    """One that breaks or hangs is told and left; the others get their turn."""

    def break_down() -> None:
        raise OSError("down")

    with VirtualClock() as clock:  # of real time, a busy machine may need any amount
        hanging = Provider(lambda: clock.sleep(60))
        fine, broken = Provider(), Provider(break_down)
        finish_telemetry([object(), broken, hanging, fine], timeout=0.05)
    assert fine.done == ["flush", "shutdown"]
    assert broken.done == hanging.done == ["flush"]
    assert "force_flush of Provider failed: OSError: down" in caplog.text
    assert "did not return within 0.05 s" in caplog.text


def test_without_any_provider_nothing_happens() -> None:
    """The stand-ins of the API have nothing to flush."""
    finish_telemetry()


@pytest.fixture
def json_log() -> Iterator[None]:
    """A process that has set up its log as objects, and nothing else."""
    root = logging.getLogger()
    before, root.handlers, level = root.handlers, [], root.level
    set_up_logging("error", "json")
    yield
    root.handlers = before
    root.setLevel(level)


@pytest.mark.usefixtures("json_log")
def test_what_is_said_beside_a_log_of_objects(capfd: pytest.CaptureFixture[str]) -> None:
    """It is an object too, whatever the level of the log; and so is the error of a command."""
    say("stopping")
    show_error(ErgonError("the store is away", remedy="wait"))
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["level"], line["logger"], line["message"]) for line in lines] == [
        ("INFO", "ergon", "stopping"),
        ("ERROR", "ergon", "the store is away (wait)"),
    ]


def test_what_is_said_beside_a_log_of_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """It is a line."""
    say("stopping")
    assert capfd.readouterr().err == "ergon: stopping\n"


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_record_shows_a_secret(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in its message nor in a traceback, whoever logs it."""
    shop = private_logger()
    set_up_logging("info", format, shop)
    away = OSError("postgresql://svc:hunter2@db/work is away")
    shop.error("DB_PASSWORD=%s did not help", "hunter2", exc_info=away)
    shop.info("sold", extra={"headers": {"Authorization": "Bearer hunter2"}})
    told = capsys.readouterr().err
    assert "hunter2" not in told
    assert "postgresql://***@db/work is away" in told
    for line in told.splitlines() if format == "json" else ():
        assert json.loads(line)["logger"] == "shop"
