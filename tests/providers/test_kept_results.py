"""What is kept of a result for later deliveries: all of it, or a clear error in its place."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.ports.providerstore import ClaimState, ProviderStore
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.providers.tasks import TaskEnd, TaskEnding, TaskOptions
from tests.providers.scripted_tasks import call, fingerprint_of

pytestmark = pytest.mark.req("PEF:T-3", "PEF:A-16")
KEY: dict[str, Any] = {"idempotency_key": "k"}


class Answers(SyntheticProvider):
    """Answers with what it was given, and counts."""

    def __init__(self, data: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.data = data
        self.made = 0

    def _execute_impl(self, **given: Any) -> dict[str, Any]:
        self.made += 1
        return self.data


def runner(data: dict[str, Any], store: ProviderStore | str | None = None, **options: Any) -> Any:
    """A runner whose provider answers with ``data``."""
    provider = Answers(data, store=store)
    return ProviderTaskRunner(provider, task_name="t", options=TaskOptions(**options))


def twice(run: ProviderTaskRunner, **of: Any) -> tuple[TaskEnding, TaskEnding]:
    """The call, and another delivery under its key."""
    first = run.run(call(**(of or KEY)))
    assert first.end is TaskEnd.DONE
    return first, run.run(call(**(of or KEY)))


@pytest.mark.parametrize("kind", ["memory", "sqlite", pytest.param("pg", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"text": "x" * 3_000_000}, id="large"),
        pytest.param({"access_token": "s3cret", "url": "https://u:pw@h/"}, id="secret"),
        pytest.param({}, id="empty"),
    ],
)
def test_a_result_is_replayed_whole(
    kind: str, data: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """However large it is, and whatever its fields are called; the provider is called once."""
    store: ProviderStore | str = MemoryProviderStore()
    if kind != "memory":
        is_file = kind == "sqlite"
        store = open_store(
            f"sqlite:///{tmp_path}/w.db" if is_file else request.getfixturevalue("postgres_url")
        )
    run = runner(data, store)
    _, again = twice(run)
    assert (again.end, again.result.data) == (TaskEnd.REPLAYED, data)
    assert run.provider.made == 1


@pytest.mark.parametrize(
    ("data", "options", "why"),
    [
        ({"a": "x" * 100}, {"max_result_bytes": 50}, "max_result_bytes"),
        ({"access_token": "s3cret"}, {"keep_results": "without_secrets"}, "secret"),
        ({"a": 1}, {"keep_results": "never"}, "keep_results"),
    ],
)
def test_a_result_that_was_not_kept_is_an_error(
    data: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    """It says what happened and what to do; nothing is called, and nothing looks like a success."""
    run = runner(data, **options)
    _, again = twice(run)
    assert (again.end, again.result.success, again.result.replayed) == (TaskEnd.FAILED, False, True)
    assert (again.result.reason_code, again.result.data) == ("internal_error", None)
    told = f"{again.result.error}"
    assert "succeeded" in told
    assert why in told
    assert "s3cret" not in told
    assert run.provider.made == 1


def test_a_result_that_json_cannot_say_is_an_error() -> None:
    """An object that refuses to be a text, and one that is nested without end."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    loop: dict[str, Any] = {}
    loop["self"] = loop
    one_name: dict[Any, Any] = {1: "a", "1": "b"}
    nested: dict[str, Any] = {"deep": [{date(2026, 1, 1): 1, "2026-01-01": 2}]}
    for data in ({"a": Odd()}, loop, one_name, nested):
        _, again = twice(runner(data))
        assert (again.end, again.result.reason_code) == (TaskEnd.FAILED, "internal_error")
        assert "JSON" in f"{again.result.error}"


def test_what_json_has_no_word_for_is_kept_as_text() -> None:
    """As the task's result backend has it."""

    class Money:
        def __str__(self) -> str:
            return "5 EUR"

    _, again = twice(runner({"paid": Money()}))
    assert again.result.data == {"paid": "5 EUR"}


@pytest.mark.parametrize("reason", ["too_large", "has_secrets", "not_json", "too_deep"])
def test_a_marker_of_an_earlier_version_is_an_error(reason: str, tmp_path: Path) -> None:
    """Rows that earlier versions wrote hold a marker where the result should be."""
    path = tmp_path / "work.db"
    run = runner({"a": 1}, f"sqlite:///{path}")
    twice(run)
    with closing(sqlite3.connect(path)) as connection, connection:
        marker = f'{{"_ergon_result":"{reason}"}}'
        connection.execute("UPDATE provider_idempotency_records SET result_json = ?", (marker,))
    again = run.run(call(**KEY))
    assert (again.end, again.result.data) == (TaskEnd.FAILED, None)
    assert "succeeded" in f"{again.result.error}"


def test_a_damaged_result_is_an_error(tmp_path: Path) -> None:
    """The call is not made again, and its key stays what it is."""
    path = tmp_path / "work.db"
    run = runner({"a": 1}, f"sqlite:///{path}")
    twice(run)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE provider_idempotency_records SET result_json = '{\"a\":'")
    again = run.run(call(**KEY))
    assert (again.end, again.result.reason_code) == (TaskEnd.FAILED, "internal_error")
    assert run.provider.made == 1


def test_a_store_that_refuses_the_result_keeps_the_success() -> None:
    """Otherwise the key would be free again in a while, and the provider paid twice."""

    class Small(MemoryProviderStore):
        def finish(self, *given: Any, **more: Any) -> bool:
            if given[3] is not None:
                raise StoreError("the value is too large")
            return super().finish(*given, **more)

    run = runner({"a": 1}, Small())
    _, again = twice(run)
    assert (again.end, run.provider.made) == (TaskEnd.FAILED, 1)
    assert "store" in f"{again.result.error}"


def test_results_in_memory_are_bounded() -> None:
    """The oldest results make room, and their keys say so; no call is made again."""
    store = MemoryProviderStore(result_bytes=1000)
    run = runner({"a": "x" * 400}, store)
    for key in ("k1", "k2", "k3"):
        run.run(call(idempotency_key=key))
    ends = [run.run(call(idempotency_key=key)).end for key in ("k1", "k2", "k3")]
    assert ends == [TaskEnd.FAILED, TaskEnd.REPLAYED, TaskEnd.REPLAYED]
    assert run.provider.made == 3


# -- encryption -----------------------------------------------------------------------------------


def test_an_encrypted_result_is_not_in_the_file(tmp_path: Path) -> None:
    """With a cipher, the store has nothing to read, and a replay is whole."""
    path = tmp_path / "work.db"
    cipher = Fernet(Fernet.generate_key())
    run = runner({"access_token": "s3cret"}, f"sqlite:///{path}", result_cipher=cipher)
    _, again = twice(run)
    assert again.result.data == {"access_token": "s3cret"}
    run.provider.store.close()
    assert b"s3cret" not in path.read_bytes()


def test_a_result_that_cannot_be_decrypted_is_an_error() -> None:
    """Another key, none at all, and a row that was put in the place of another."""
    store = MemoryProviderStore()
    cipher = Fernet(Fernet.generate_key())
    twice(runner({"a": 1}, store, result_cipher=cipher))
    for options in ({"result_cipher": Fernet(Fernet.generate_key())}, {}):
        again = runner({"a": 2}, store, **options).run(call(**KEY))
        assert (again.end, again.result.reason_code) == (TaskEnd.FAILED, "internal_error")
        assert "result_cipher" in f"{again.result.error}"


def test_an_encrypted_result_belongs_to_its_key(tmp_path: Path) -> None:
    """A row that was copied to another key is refused."""
    path = tmp_path / "work.db"
    cipher = Fernet(Fernet.generate_key())
    run = runner({"a": 1}, f"sqlite:///{path}", result_cipher=cipher)
    for key in ("k", "other"):
        run.run(call(idempotency_key=key))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE provider_idempotency_records SET result_json = (SELECT result_json FROM"
            " provider_idempotency_records WHERE idempotency_key = 'other')"
        )
    assert run.run(call(**KEY)).end is TaskEnd.FAILED


@pytest.mark.parametrize(
    "options", [{"keep_results": "some"}, {"result_cipher": "key"}, {"computed_keys": "global"}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    """With an error that names what is allowed."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        TaskOptions(**options)


# -- computed keys --------------------------------------------------------------------------------


def test_a_computed_key_is_of_one_message() -> None:
    """The same request in another message is another call; a redelivery is not."""
    run = runner({"a": 1})
    ends = [run.run(call(call_id=each)).end for each in ("m1", "m2", "m1")]
    assert ends == [TaskEnd.DONE, TaskEnd.DONE, TaskEnd.REPLAYED]


def test_a_computed_key_of_the_request_is_asked_for() -> None:
    """Then two messages with the same request are one call."""
    run = runner({"a": 1}, computed_keys="request")
    ends = [run.run(call(call_id=each)).end for each in ("m1", "m2")]
    assert ends == [TaskEnd.DONE, TaskEnd.REPLAYED]


@pytest.mark.parametrize("is_written_by", ["the same process", "the next process"])
def test_a_success_is_not_called_again_though_the_store_was_away_when_it_ended(
    is_written_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits on disk and is written under its key when the store answers, long before the lease.

    The message is acknowledged as a success then, so that nothing else would write it.
    """
    now, url = [1_000.0], f"sqlite:///{tmp_path / 'work.db'}"
    store = open_store(url, clock=lambda: now[0])

    def locked(*_: Any, **__: Any) -> bool:
        raise StoreUnavailableError("the database is locked")

    with monkeypatch.context() as outage:
        outage.setattr(store, "finish", locked)
        assert runner({"paid": 7}, store).run(call(**KEY)).end is TaskEnd.DONE
        if is_written_by == "the next process":
            store.close()
            store = open_store(url, clock=lambda: now[0])
    run = runner({"paid": 8}, store)
    assert recorder_of(store).flush()
    assert recorder_of(store).drain()  # what another process left is not waited for by flush
    now[0] += run.lease_seconds + 1
    ending = run.run(call(**KEY))
    assert (ending.end, ending.result.data, run.provider.made) == (
        TaskEnd.REPLAYED,
        {"paid": 7},
        0,
    )
    store.close()


def test_a_call_that_was_taken_over_keeps_what_its_new_owner_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ending that waited on disk for longer than the lease is too late, and changes nothing."""
    now = [1_000.0]
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}", clock=lambda: now[0])

    def locked(*_: Any, **__: Any) -> bool:
        raise StoreUnavailableError("the database is locked")

    with monkeypatch.context() as outage:
        outage.setattr(store, "finish", locked)
        run = runner({"paid": 7}, store)
        assert run.run(call(**KEY)).end is TaskEnd.DONE
        now[0] += run.lease_seconds + 1
        fingerprint = fingerprint_of(run.provider)
        other = store.claim("t", "k", fingerprint, "another machine", 60.0, 600.0)
        assert other.state is ClaimState.MINE
    assert store.finish("t", "k", "another machine", {"paid": 8}, None)
    assert recorder_of(store).flush()
    assert run.run(call(**KEY)).result.data == {"paid": 8}
    store.close()
