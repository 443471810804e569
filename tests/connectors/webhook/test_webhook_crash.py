"""A server of webhooks is killed while requests come in: what it said it has, it has."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ergon_framework import JobsConnector
from tests import fork_server
from tests.campaign.parameter_sample import sampled
from tests.connectors.webhook import sender, server_child

IDS = [f"d-{n}" for n in range(60)]


@contextmanager
def served(url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and where it listens."""
    command = [sys.executable, server_child.__file__, url, sender.SECRET]
    with fork_server.start(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child, f"http://127.0.0.1:{int(child.stdout.readline())}/"
        finally:
            child.kill()


def deliver(address: str, delivery: str) -> bool:
    """Whether the server said that it has it."""
    body = sender.encode({"n": delivery})
    try:
        answer = httpx.post(
            address, content=body, headers=sender.github(body, delivery=delivery), timeout=30
        )
    except httpx.HTTPError:
        return False
    return answer.status_code == 202


@pytest.mark.slow
@pytest.mark.parametrize("survived", sampled([1, 17], [17]))
def test_a_killed_server_has_what_it_accepted(tmp_path: Path, survived: int) -> None:
    """Killed in the middle of requests, it loses none it answered; repeats are told apart."""
    url = f"sqlite:///{tmp_path}/work.db"
    accepted: list[str] = []
    with served(url) as (child, address), ThreadPoolExecutor(8) as senders:

        def send(delivery: str) -> None:
            if deliver(address, delivery):
                accepted.append(delivery)
                if len(accepted) == survived:
                    child.send_signal(signal.SIGKILL)

        list(senders.map(send, IDS))
        assert child.wait(30) == -signal.SIGKILL
    assert survived <= len(accepted) < len(IDS)
    with JobsConnector(url, queue="webhooks") as jobs:
        for delivery in accepted:
            assert jobs.fetch_transaction_by_id(f"github:{delivery}") is not None
        with served(url) as (_, address), ThreadPoolExecutor(8) as senders:
            assert all(senders.map(deliver, [address] * len(IDS), IDS))
        stored = jobs.fetch_transactions(2 * len(IDS))
        assert sorted(each.transaction_id for each in stored) == sorted(
            f"github:{each}" for each in IDS
        )
