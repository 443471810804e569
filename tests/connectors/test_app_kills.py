"""A process that runs ``app.run()`` is killed in the middle of handlers, and started again."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ergon_framework.connector import MqttConnector, from_url
from ergon_framework.ports.transaction import Transaction
from tests import fork_server
from tests.connectors.kafka.kafka_topic import put
from tests.servers.kafka import FAST, KafkaCluster
from tests.servers.mosquitto import Mosquitto
from tests.servers.s3 import REGION
from tests.servers.sqs import SqsServer
from tests.waiting import until

pytestmark = pytest.mark.slow
CHILD = Path(__file__).with_name("app_child.py")
COUNT = 40
IDS = {f"t{n}" for n in range(COUNT)}


class Broker(NamedTuple):
    """Where the App consumes from, and how work is put there."""

    url: str
    put: Callable[[list[Transaction]], object]
    options: dict[str, Any]


def on_sqs(request: pytest.FixtureRequest) -> Broker:
    """What a dead process had is hidden for two seconds."""
    sqs: SqsServer = request.getfixturevalue("sqs")
    url = f"sqs://{REGION}/{sqs.new_queue()}?endpoint={sqs.endpoint}&visibility=2&wait=1"
    return Broker(url, lambda given: dispatched(url, given), {})


def on_mqtt(request: pytest.FixtureRequest) -> Broker:
    """The broker keeps the session of a dead process."""
    mosquitto: Mosquitto = request.getfixturevalue("mosquitto")
    url = mosquitto.url(mosquitto.new_topic())
    with MqttConnector(url, client_id="app-kills", wait=0.0) as connector:
        connector.fetch_transactions(1)
    return Broker(f"{url}?client_id=app-kills", lambda given: dispatched(url, given), {})


def on_kafka(request: pytest.FixtureRequest) -> Broker:
    """The group gives what a dead process had to the next one."""
    kafka: KafkaCluster = request.getfixturevalue("kafka")
    topic = kafka.new_topic(2)
    url = f"kafka://{kafka.server}/{topic}"
    return Broker(url, lambda given: put(kafka, topic, given), {"client": dict(FAST)})


def dispatched(url: str, given: list[Transaction]) -> None:
    """Put work there, as a producer does."""
    with from_url(url) as connector:
        connector.dispatch_transactions(given)


class Diary:
    """What the processes wrote down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def told(self, word: str) -> list[str]:
        """The ids with this word, in order."""
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [line[1] for line in lines if line[0] == word]

    def in_hand(self) -> set[str]:
        """What has begun and has not ended."""
        return set(self.told("began")) - set(self.told("ended"))


@pytest.mark.parametrize("broker", [on_sqs, on_mqtt, on_kafka])
def test_a_killed_app_does_again_what_had_no_outcome(
    broker: Callable[[pytest.FixtureRequest], Broker],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """Nothing is settled that had not ended, and little is done twice of what had."""
    url, put_there, options = broker(request)
    put_there([Transaction(f"t{n}", {"n": n}) for n in range(COUNT)])
    diary = Diary(tmp_path / "diary")
    words = [sys.executable, str(CHILD), url, str(diary.path), json.dumps(options)]
    interrupted: set[str] = set()
    for least in (6, 16):
        with fork_server.start(words) as child:
            until(lambda: child.poll() is not None or enough(diary, least), "some of the work")  # noqa: B023
            assert child.poll() is None
            child.send_signal(signal.SIGKILL)
            child.wait()
        interrupted |= diary.in_hand()
        assert len(set(diary.told("ended"))) < COUNT
    assert interrupted, "nothing was cut off"
    with fork_server.start(words) as child:
        until(lambda: child.poll() or set(diary.told("ended")) == IDS, "all of the work")
        child.terminate()
        assert child.wait(60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert repeated(diary.told("ended")) <= 24, "what was settled came again"


def enough(diary: Diary, least: int) -> bool:
    """So much has ended, and something is in the middle of its handler."""
    return len(diary.told("ended")) >= least and bool(diary.in_hand())


def repeated(ended: Iterable[str]) -> int:
    """How many of these were done before."""
    found = list(ended)
    return len(found) - len(set(found))
