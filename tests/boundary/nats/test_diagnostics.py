"""Looking at a NATS server: what of it is unsafe, old, full or slow."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.nats import NatsFactStore
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.nats import NatsTimeouts, diagnostics
from ergon_framework.storage.nats.diagnostics import Durability, durability_of, observe
from ergon_framework.storage.server import Observation
from tests.servers.nats import NatsServer
from tests.servers.server import free_port

pytestmark = pytest.mark.req("SCALE:doctor", "SCALE:boundary-nats")


def seen(url: str, timeouts: NatsTimeouts | None = None) -> dict[str, Observation]:
    """What was observed, by name."""
    return {each.what: each for each in observe(url, timeouts or NatsTimeouts())}


def test_a_server_that_syncs_is_safe(nats_server: NatsServer) -> None:
    """Version, durability, room, latency and clock are told, and nothing is to be done."""
    url = nats_server.new_space()
    store = NatsFactStore(url, zone="plant-a")
    assert "synced to disk on one server" in store.acknowledgement
    store.close()
    found = seen(url)
    assert found.keys() == {"version", "durability", "room", "latency", "clock"}
    assert found["version"].found.startswith("2.")
    assert "synced to disk before" in found["durability"].found
    assert not any(each.is_grave for each in found.values())


def test_the_clock_of_a_server_that_keeps_nothing_yet(nats_server: NatsServer) -> None:
    """A server tells its time before there is any stream."""
    assert "from this machine's" in seen(nats_server.new_space())["clock"].found


@pytest.mark.slow
def test_a_clock_that_this_user_is_not_told(own_nats: NatsServer) -> None:
    """It is said plainly, with when it will be known; and then it is."""
    user = '{ user: "me", password: "p", permissions: { publish: { deny: "$SYS.>" } } }'
    own_nats.configure(more=f"authorization {{ users: [ {user} ] }}")
    own_nats.start()
    url = own_nats.url(user="me:p")
    found = seen(url, NatsTimeouts(response=3.0))["clock"]  # the other questions are answered
    assert found.found.startswith("not known")
    assert "start the node once" in found.remedy
    assert not found.is_grave
    NatsFactStore(url, zone="plant-a").close()
    assert "from this machine's" in seen(url)["clock"].found


def test_nobody_knows_without_a_monitor(nats_server: NatsServer) -> None:
    """Where the server cannot be asked, the store is refused unless the URL accepts that."""
    url = nats_server.url("unmonitored", is_monitored=False)
    with pytest.raises(ConfigurationError, match="does not tell whether it syncs") as caught:
        NatsFactStore(url, zone="plant-a")
    assert "?monitor=" in (caught.value.remedy or "")
    assert "sync_interval: always" in (caught.value.remedy or "")
    url += "?acknowledge=unsynced"
    store = NatsFactStore(url, zone="plant-a")
    assert not store.is_synced
    assert "could not be checked" in store.acknowledgement
    store.close()
    found = seen(url)["durability"]
    assert "could not be checked" in found.found
    assert "monitor=" in found.remedy
    assert not found.is_grave


@pytest.mark.slow
def test_a_server_that_syncs_later_is_grave(own_nats: NatsServer, tmp_path: Path) -> None:
    """A server with the default sync interval may lose what it acknowledged: it is refused, unless
    the URL accepts it, and then the zone has an alert.
    """
    own_nats.configure(sync='"2m"')
    own_nats.start()
    url = own_nats.url(options=f"?monitor={own_nats.monitor_url}")
    found = seen(url)["durability"]
    assert found.is_grave
    assert "sync_interval: always" in found.remedy
    with pytest.raises(ConfigurationError, match="before they are synced") as caught:
        NatsFactStore(url, zone="plant-a")
    assert "sync_interval: always" in (caught.value.remedy or "")
    assert "?acknowledge=unsynced" in (caught.value.remedy or "")
    accepted = f"{url}&acknowledge=unsynced"
    assert not seen(accepted)["durability"].is_grave
    settings = ZoneSettings.model_validate({"data": str(tmp_path), "store": accepted})
    with LocalZone.open("plant-a", settings) as zone:
        assert "a power cut may lose" in zone.store.acknowledgement
        assert [each["kind"] for each in status(zone)["alerts"]] == ["unsynced"]
    with closing(NatsFactStore(url, zone="plant-a", read_only=True)) as store:
        assert not store.is_synced  # who only looks is let in


def test_a_monitor_that_does_not_answer_is_unknown() -> None:
    """An address where nobody listens, or that is none, is as good as no address."""
    for monitor in (f"http://127.0.0.1:{free_port()}", "nonsense"):
        assert durability_of({"num_replicas": 1}, monitor) == Durability(1, None)


def test_replicas_make_up_for_syncing() -> None:
    """What lies on three servers survives the power cut of one, and says no more than that."""
    found = Durability(3, syncs_always=False)
    assert found.is_safe
    assert "not of all at once" in found.sentence
    assert diagnostics.durability("s", found).remedy == ""
    assert "3 servers" in Durability(3, syncs_always=True).sentence


def test_an_old_server_is_grave() -> None:
    """A server that cannot write several messages at once has to be upgraded."""
    found = diagnostics.version("2.10.1", 0)
    assert found.is_grave
    assert "2.12" in found.remedy


def test_a_crowded_server() -> None:
    """Little room left is worth knowing."""
    limits = {"limits": {"max_storage": 100 << 20}}
    assert diagnostics.room({**limits, "storage": 95 << 20}).remedy
    assert not diagnostics.room({**limits, "storage": 5 << 20}).remedy


def test_what_connecting_raises_is_raised() -> None:
    """A server that is away, or a URL that is none, is not an observation."""
    with pytest.raises(StoreUnavailableError):
        seen(f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigurationError):
        seen("nats://")
