"""What the tests of tasks share: a provider with a script, and calls to it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import KeyClaimResult, LaneKey, RecordBatch
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS
from ergon_framework.providers.pipeline.request import fingerprint
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.providers.tasks import TaskCall, TaskOptions


class FlakyStore(MemoryProviderStore):
    """A store that can be told not to answer."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.refuses: set[str] = set()

    def _check(self, what: str) -> None:
        if what in self.refuses:
            raise StoreUnavailableError(f"{what} was told to fail")

    def claim(self, *arguments: Any) -> KeyClaimResult:
        self._check("claim")
        return super().claim(*arguments)

    def finish(self, *arguments: Any, **options: Any) -> bool:
        self._check("finish")
        return super().finish(*arguments, **options)

    def record(self, batch: RecordBatch) -> None:
        self._check("record")
        super().record(batch)


def provider(script: str = "ok", **options: Any) -> SyntheticProvider:
    """A provider that does what its script says."""
    return SyntheticProvider(script, **options)


def runner(
    script: str | SyntheticProvider = "ok",
    dice: Callable[[], float] = lambda: 0.0,
    longest_wait: Callable[[], float] | None = None,
    provider_options: dict[str, Any] | None = None,
    **options: Any,
) -> ProviderTaskRunner:
    """A runner with these options on a provider of its own."""
    made = provider(script, **(provider_options or {})) if isinstance(script, str) else script
    return ProviderTaskRunner(
        made,
        task_name="synthetic.fetch",
        options=TaskOptions(**options),
        longest_wait=longest_wait,
        dice=dice,
    )


def call(payload: dict[str, Any] | None = None, **options: Any) -> TaskCall:
    """A delivery."""
    values: dict[str, Any] = {
        "tenant_id": "t",
        "campaign_id": None,
        "operation": "fetch",
        "payload": {"q": 1} if payload is None else payload,
        "call_id": "message-1",
        **options,
    }
    return TaskCall(**values)


def lock_as_another_process(name: str, owner: str) -> int:
    """The open file of a call that another process makes. Closing it is the death of that process.

    A lock belongs to an opened file and not to its process, so that the test can do without one.
    """
    path = OWNER_LOCKS.folder() / hashlib.sha256(name.encode()).hexdigest()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.pwrite(file, owner.encode(), 0)
    return file


@contextmanager
def on_another_machine() -> Iterator[None]:
    """Do something as a machine would that sees nothing of the locks of this one."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        yield


def fingerprint_of(provider: ProviderBase) -> str:
    """The fingerprint of the call that :func:`call` makes by default."""
    lane = LaneKey("t", provider.provider_name, provider.capability)
    return fingerprint(lane, None, "fetch", {"q": 1})
