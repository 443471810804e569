"""A working directory of a test's own, with the modules and settings it writes there."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ergon_framework.app.settings import load_settings
from ergon_framework.app.wiring import Overrides, Wiring, target_of, wire
from ergon_framework.telemetry import TelemetrySettings, configure

IMPORTS = """
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.task.base import BaseAsyncTask, BaseTask
from ergon_framework.task.exceptions import ExceptionType, TransactionException
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.task.ready import *
"""


class Workplace:
    """Where a test writes its modules and its settings."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def module(self, text: str, name: str = "shop") -> None:
        """Write a module that has the usual names imported."""
        path = self.directory / f"{name}.py"
        path.write_text(IMPORTS + textwrap.dedent(text))

    def settings(self, text: str) -> None:
        """Write ``ergon.toml``."""
        (self.directory / "ergon.toml").write_text(textwrap.dedent(text))

    def wire(self, target: str = "shop:Orders", overrides: Overrides | None = None) -> Wiring:
        """The wiring of a task in here."""
        settings = load_settings(environ={})
        return wire(target_of(target, settings), settings, overrides)


@contextmanager
def workplace_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Work in there, and forget all modules afterwards that were imported meanwhile."""
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)
    try:
        yield Workplace(directory)
    finally:
        for name in set(sys.modules) - known:
            if getattr(sys.modules[name], "__file__", None) and str(directory) in str(
                sys.modules[name].__file__
            ):
                del sys.modules[name]
        configure(TelemetrySettings())
