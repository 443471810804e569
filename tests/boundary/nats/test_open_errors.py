"""Opening a store on NATS: each thing that can be wrong has an error of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.factstore.nats.setup import StreamSetup
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    MissingExtraError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import OUTBOUND, Appended
from ergon_framework.storage.nats import NatsClient, NatsStream, address, address_of
from ergon_framework.storage.nats.diagnostics import Account
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.nats.conftest import Open
from tests.servers.nats import NatsServer
from tests.servers.server import free_port

pytestmark = pytest.mark.req("SCALE:url-errors", "SCALE:boundary-nats")
ZONE = "plant-a"
PLENTY = 1 << 20


@pytest.fixture
def stream(nats_url: str) -> Iterator[NatsStream]:
    """The stream that the store at ``nats_url`` has, or will have."""
    opening = StreamSetup(nats_url, ZONE, read_only=True)
    with closing(opening.stream.client):
        yield opening.stream


def edit(stream: NatsStream, **changes: Any) -> None:
    """Change the settings of a stream, as an operator would."""
    standing = stream.state()
    assert standing is not None
    config = {**standing.config, **changes}
    reply = stream.client.request(
        f"$JS.API.STREAM.UPDATE.{stream.name}", json.dumps(config).encode()
    )
    assert "error" not in json.loads(reply.data), reply.data


@pytest.mark.parametrize(
    "url",
    [
        "nats:host",
        "nats://",
        "nats://host:port",
        "nats://user:se/cret@host",
        "nats://u:secret@host/a.b",
        "nats://u:secret@host/a?replicas=9",
        "nats://u:secret@host/a?replicas=x",
        "nats://u:secret@host/a?color=red",
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    """What cannot be read is refused before anything is opened, and no password is shown."""
    with pytest.raises(ConfigurationError) as caught:
        NatsFactStore(url, zone=ZONE)
    assert "cret" not in f"{caught.value} {caught.value.remedy}"
    assert caught.value.remedy


def test_a_url_names_servers_and_a_user() -> None:
    """Several servers, a user or a token, a name and options; the text shows no secret."""
    found = address_of("nats://me:p%40ss@one,two:5222/space?replicas=3&monitor=http://one:8222/")
    assert found.servers == ("nats://one:4222", "nats://two:5222")
    assert (found.user, found.password, found.token) == ("me", "p@ss", None)
    assert (found.space, found.replicas, found.monitor) == ("space", 3, "http://one:8222")
    assert "p@ss" not in f"{found} {found.name}"
    assert address_of("nats://who@[::1]?tls=true").token == "who"  # noqa: S105
    assert address_of("nats://[::1]?tls=true").servers == ("tls://[::1]:4222",)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the client library the error says what to install."""
    monkeypatch.setattr(address, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError) as caught:
        NatsFactStore("nats://host", zone=ZONE)
    assert "ergon-framework[nats]" in (caught.value.remedy or "")


def test_a_server_that_is_away() -> None:
    """Nobody listens there: unavailable, and the remedy says how to look."""
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
        NatsFactStore(f"nats://u:secret@127.0.0.1:{free_port()}", zone=ZONE)
    assert "secret" not in f"{caught.value} {caught.value.remedy}"
    assert "server runs" in (caught.value.remedy or "")


@pytest.mark.slow
def test_a_wrong_password(own_nats: NatsServer) -> None:
    """A server that does not let the user in is a matter of configuration."""
    own_nats.configure(more="authorization { user: ergon, password: right }")
    own_nats.start()
    for user in ("", "ergon:wrong", "token"):
        with pytest.raises(ConfigurationError, match="does not let this user in") as caught:
            NatsFactStore(own_nats.url(user=user), zone=ZONE)
        assert "wrong" not in f"{caught.value} {caught.value.remedy}"
    NatsFactStore(own_nats.url(user="ergon:right"), zone=ZONE).close()


@pytest.mark.slow
def test_a_server_without_jetstream(own_nats: NatsServer) -> None:
    """A server that keeps nothing is refused by name."""
    (own_nats.folder / "nats.conf").write_text(f'listen: "127.0.0.1:{own_nats.port}"')
    own_nats.start()
    with pytest.raises(ConfigurationError, match="no JetStream") as caught:
        NatsFactStore(own_nats.url(), zone=ZONE)
    assert "-js" in (caught.value.remedy or "")


def test_an_old_server(nats_url: str) -> None:
    """A server without atomic batches is refused, with the version it has to have."""
    with (
        closing(NatsClient(address_of(nats_url))) as line,
        pytest.raises(ConfigurationError, match="no atomic batches") as caught,
    ):
        Account(line).refuse_unfit(min_level=99)
    assert "2.12" in (caught.value.remedy or "")


def test_a_stream_of_somebody_else(nats_url: str, stream: NatsStream) -> None:
    """A stream of that name that is not ours is left alone."""
    stream.create({"subjects": ["somebody.else"]})
    with pytest.raises(StoreSchemaError, match="not one of ours"):
        NatsFactStore(nats_url, zone=ZONE)


@pytest.mark.parametrize(
    ("metadata", "kind", "words"),
    [
        ({"ergon.zone": ZONE, "ergon.schema": "99"}, StoreSchemaError, "newer version"),
        ({"ergon.zone": "other", "ergon.schema": "1"}, ConfigurationError, "zone 'other'"),
    ],
)
def test_a_stream_of_another_kind(
    open_store: Open,
    stream: NatsStream,
    metadata: dict[str, str],
    kind: type[ErgonError],
    words: str,
) -> None:
    """One that a newer version made, or another zone, is refused."""
    open_store().close()
    edit(stream, metadata=metadata)
    with pytest.raises(kind, match=words):
        open_store()


@pytest.mark.parametrize("wrong", [{"max_age": 10**12}, {"max_msgs": 10_000}, {"discard": "old"}])
def test_a_stream_that_would_forget(
    open_store: Open, stream: NatsStream, wrong: dict[str, Any]
) -> None:
    """A stream whose settings let it drop facts is refused, and the remedy says what to set."""
    open_store().close()
    edit(stream, **wrong)
    with pytest.raises(ConfigurationError, match="would not keep") as caught:
        open_store()
    assert next(iter(wrong)) in str(caught.value)


def test_a_stream_in_memory_is_refused(open_store: Open, stream: NatsStream) -> None:
    """A stream that is gone with the server is not taken for a store."""
    metadata = {"ergon.zone": ZONE, "ergon.schema": "1"}
    stream.create({"subjects": ["some.>"], "storage": "memory", "metadata": metadata})
    with pytest.raises(ConfigurationError, match="storage = 'memory'"):
        open_store()


def test_a_full_stream(open_store: Open, stream: NatsStream) -> None:
    """Where there is no room nothing is dropped: the append is refused, and goes on with room."""
    store = open_store()
    store.append(OUTBOUND, [new("a")])
    edit(stream, max_bytes=20_000)
    for facts in ([new("b", fact=b"x" * 20_000)], [new("c"), new("d", fact=b"x" * 20_000)]):
        with pytest.raises(StoreFullError) as caught:
            store.append(OUTBOUND, facts)
        assert "max_bytes" in (caught.value.remedy or "")
    assert [each.message_id for each in store.page(OUTBOUND, 0, 9, PLENTY).facts] == ["a"]
    edit(stream, max_bytes=-1)
    assert store.append(OUTBOUND, [new("c")]) == [Appended(2)]


def test_reading_only(open_store: Open) -> None:
    """A store that is only read takes nothing, and needs one that was made."""
    with pytest.raises(StoreSchemaError, match="no stream"):
        open_store(read_only=True)
    open_store().append(OUTBOUND, [new("a")])
    reader = open_store(read_only=True)
    assert len(reader.page(OUTBOUND, 0, 9, PLENTY).facts) == 1
    with pytest.raises(StoreReadOnlyError):
        reader.append(OUTBOUND, [new("b")])


def test_a_stream_that_was_deleted(open_store: Open, stream: NatsStream) -> None:
    """When somebody deletes the stream, the store says so and does not begin anew by itself."""
    store = open_store()
    store.append(OUTBOUND, [new("a")])
    stream.client.request(f"$JS.API.STREAM.DELETE.{stream.name}", b"")
    with pytest.raises(StoreUnavailableError):
        store.append(OUTBOUND, [new("b")])
    with pytest.raises(StoreUnavailableError, match="no longer has the stream"):
        store.page(OUTBOUND, 0, 9, PLENTY)


def test_a_line_that_was_closed() -> None:
    """Nothing is asked on a closed line."""
    line = NatsClient(address_of("nats://127.0.0.1"))
    line.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        line.request("anything", b"")
