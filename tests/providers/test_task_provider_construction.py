"""A task whose provider cannot be built: the call waits in the queue, and is made when it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery
from celery.exceptions import Reject, Retry

from ergon_framework.errors import StoreSchemaError, StoreUnavailableError
from ergon_framework.providers.celery_task import CeleryProviderTask
from ergon_framework.providers.errors import ProviderDependencyError
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.synthetic import SyntheticProvider
from tests.providers.test_provider_task_wrapper import Sent, messages

pytestmark = pytest.mark.req("PROVIDERS:celery", "PEF:trap-store-down", "PEF:T-1")

AWAY = StoreUnavailableError("postgresql://u:hush@host/base does not answer")


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Celery]:
    """An app whose broker is in memory."""
    made = Celery(request.node.name, broker="memory://", backend="cache+memory://")
    messages(made, "celery")  # all apps of a process share this broker
    yield made
    messages(made, "celery")
    made.close()


def task_of(app: Celery, factory: Callable[[], Any], **options: Any) -> Any:
    """A registered task that builds its provider like this."""
    body = {"name": "rank", "provider_factory": staticmethod(factory), "relays": False, **options}
    return app.register_task(type("RankTask", (CeleryProviderTask,), body)())


def failing(*failures: Exception) -> Callable[[], SyntheticProvider]:
    """A factory that fails like this, one time each, and then works."""
    left = list(failures)

    def build() -> SyntheticProvider:
        if left:
            raise left.pop(0)
        return SyntheticProvider("ok")

    return build


@pytest.mark.parametrize(
    "error", [AWAY, StoreSchemaError("of another version"), KeyError("API_KEY"), OSError("no")]
)
def test_the_call_goes_back_and_is_made_later(app: Celery, error: Exception) -> None:
    """Whatever is wrong: a message takes over, no attempt is spent, and its key stays."""
    worker = Sent(task_of(app, failing(error)))
    with pytest.raises(Retry) as retry:
        worker.run(idempotency_key="k", payload={"q": 7})
    assert isinstance(retry.value.exc, ProviderDependencyError)
    assert "hush" not in str(retry.value.exc)
    [message] = messages(app, "celery")
    kwargs = message.payload[1]
    assert (kwargs["idempotency_key"], kwargs["payload"]) == ("k", {"q": 7})
    assert kwargs["_ergon"] == {"unbuilt": 1}
    assert message.headers["id"] == "message-1"
    assert worker.run(**kwargs)["attempt"] == 1


def test_there_is_no_hot_loop_and_no_end(app: Celery) -> None:
    """The pauses grow to a minute, and the call is never given up without a word."""
    worker = Sent(task_of(app, failing(*[AWAY] * 40), max_deferrals=2))
    kwargs: dict[str, Any] = {}
    waits = []
    for _ in range(40):
        with pytest.raises(Retry) as retry:
            worker.run(**kwargs)
        waits.append(retry.value.when)
        kwargs = dict(retry.value.sig.kwargs)
    assert waits[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert set(waits[7:]) == {60.0}
    assert worker.run(**kwargs)["attempt"] == 1


def test_no_pause_is_longer_than_the_broker_waits(app: Celery) -> None:
    """Or the message would be delivered twice."""
    task = task_of(app, failing(AWAY), longest_deferral_seconds=20.0)
    with pytest.raises(Retry) as retry:
        Sent(task).run(_ergon={"unbuilt": 30})
    assert retry.value.when == 20.0


def test_a_broker_that_is_away_as_well_keeps_the_message(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is delivered again when the broker is back."""

    def away(*given: Any, **options: Any) -> None:
        raise ConnectionError("the broker is away")

    task = task_of(app, failing(AWAY))
    monkeypatch.setattr(type(task), "apply_async", away)
    with pytest.raises(Reject) as reject:
        Sent(task).run()
    assert reject.value.requeue


def test_the_same_mistake_is_told_once(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    """With the place in the code, and without a password."""
    worker = Sent(task_of(app, failing(AWAY, AWAY, AWAY, KeyError("API_KEY"))))
    for _ in range(4):
        with pytest.raises(Retry):
            worker.run()
    told = [line for line in caplog.messages if line.startswith("task.unbuilt")]
    assert len(told) == 2
    assert f"{Path(__file__).name}:" in told[0]
    assert "KeyError" in told[1]
    assert "hush" not in caplog.text


def test_whoever_calls_it_directly_hears_of_it(app: Celery) -> None:
    """There is no queue to go back to."""
    task = task_of(app, failing(AWAY))
    with pytest.raises(StoreUnavailableError):
        task("t", None, "fetch", {})
    assert messages(app, "celery") == []


def test_a_database_that_is_away_puts_the_call_off(app: Celery, tmp_path: Path) -> None:
    """The provider is built all the same; its keys cannot be claimed, which is a deferral."""
    url = f"sqlite:///{tmp_path}/disk/work.db"
    worker = Sent(task_of(app, lambda: SyntheticProvider("ok", store=url)))
    with pytest.raises(Retry) as retry:
        worker.run()
    carried = retry.value.sig.kwargs["_ergon"]
    assert (carried["deferrals"], carried.get("attempts", 0)) == (1, 0)
    (tmp_path / "disk").mkdir()
    assert worker.run(_ergon=carried)["attempt"] == 1
    worker.task.close()
    open_store(url).close()
