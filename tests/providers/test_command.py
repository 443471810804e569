"""``ergon providers``: what it shows of providers, and what it does to their circuits."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.cli.providers import PRUNE_BATCH
from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.providerstore import LaneKey, LaneState, RecordBatch
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.schemas import ProviderHealthDetail
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.sql.store import SqlProviderStore
from tests.providers.recorder_fakes import row

pytestmark = pytest.mark.req("PROVIDERS:cli")
URL = "sqlite:///work.db"
TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
LANE = LaneKey(TENANT, "rank", "snapshot")


class ProviderCommands:
    """The command line in a working directory."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """Run ``ergon providers`` with these; what it said is in ``out`` and ``err``."""
        self._capsys.readouterr()
        code = invoke(("providers", *arguments))
        self.out, self.err = self._capsys.readouterr()
        return code

    @property
    def lines(self) -> list[list[str]]:
        """The words of each line it printed."""
        return [line.split() for line in self.out.splitlines()]


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> ProviderCommands:
    """The command line, and a store in which two tenants have called."""
    monkeypatch.chdir(tmp_path)
    now = time.time()
    with closing(open_store(URL)) as store:
        rows = [
            row("a", tenant=TENANT),
            row("b", tenant="acme", outcome="failed", reason="timeout"),
        ]
        store.record(RecordBatch([each._replace(created_at=now) for each in rows]))
        store.reserve(LANE, QuotaWindow(now - 60, now + 3600), 100, 7)
        store.reserve(LaneKey("zebra", "maps", "route"), QuotaWindow(now - 60, now + 3600), 5, 5)
    return ProviderCommands(tmp_path, capsys)


def lane_state(key: LaneKey = LANE) -> LaneState:
    """How a lane stands in the store."""
    with closing(open_store(URL)) as store:
        return store.lane_state(key)


# -- health ----------------------------------------------------------------------------------------


def test_all_tenants_are_listed(commands: ProviderCommands) -> None:
    """A line for each lane, tenants in order, those with nothing but a quota too."""
    assert commands("health", "--store", URL) == 0
    title, *lines = commands.lines
    assert title[:4] == ["tenant", "provider", "capability", "circuit"]
    assert [line[:6] for line in lines] == [
        [TENANT, "rank", "snapshot", "closed", "1.000", "12"],
        ["acme", "rank", "snapshot", "closed", "0.000", "12"],
        ["zebra", "maps", "route", "closed", "5/5"],
    ]
    assert lines[0][6] == "7/100"
    assert lines[1][6] == "timeout"


def test_one_tenant_as_json_is_the_documented_detail(commands: ProviderCommands) -> None:
    """Programs get the API's own document, one for each tenant."""
    assert commands("health", "--tenant", TENANT.upper(), "--store", URL, "--json") == 0
    [told] = json.loads(commands.out)
    checked = ProviderHealthDetail.model_validate_json(json.dumps(told))
    assert (str(checked.tenant_id), checked.is_current) == (TENANT, True)
    [item] = checked.providers
    assert (item.provider_name, item.quota and item.quota.used_count) == ("rank", 7)


def test_a_provider_with_a_store_of_its_own(commands: ProviderCommands) -> None:
    """Its lanes are listed with the others, and its circuit is found."""
    own = '[providers.crm]\nprovider = "shop:Crm"\nstore = "sqlite:///crm.db"\n'
    (commands.folder / "ergon.toml").write_text(f'[store]\nurl = "{URL}"\n{own}')
    with closing(open_store("sqlite:///crm.db")) as store:
        called = row("c", tenant=TENANT)._replace(provider_name="crm", created_at=time.time())
        store.record(RecordBatch([called]))
    assert commands("health", "--tenant", TENANT, "--json") == 0
    (summary,) = json.loads(commands.out)
    assert [each["provider_name"] for each in summary["providers"]] == ["rank", "crm"]
    assert commands("circuit", TENANT, "crm", "snapshot", "open") == 0
    with closing(open_store("sqlite:///crm.db")) as store:
        found = store.lane_state(LaneKey(TENANT, "crm", "snapshot"))
    assert found.breaker.state is CircuitState.OPEN


def test_a_tenant_that_nobody_knows(commands: ProviderCommands) -> None:
    """It has no providers, which is no error."""
    assert commands("health", "--tenant", "nobody", "--store", URL, "--json") == 0
    assert json.loads(commands.out)[0]["providers"] == []


def test_so_many_tenants_and_no_more(commands: ProviderCommands) -> None:
    """A store may know very many."""
    assert commands("health", "--limit", "2", "--store", URL, "--json") == 0
    assert [told["tenant_id"] for told in json.loads(commands.out)] == [TENANT, "acme"]


@pytest.mark.parametrize(
    "settings", [f'[providers]\nstore = "{URL}"\n', f'[store]\nurl = "{URL}"\n']
)
def test_the_store_of_the_settings(commands: ProviderCommands, settings: str) -> None:
    """``[providers]`` names it, or ``[store]`` for everything."""
    (commands.folder / "ergon.toml").write_text(settings)
    assert commands("health", "--tenant", "acme") == 0
    assert len(commands.lines) == 2


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("memory://", "its own process"),
        ("sqlite:///other.db", "there is no file other.db"),
        ("sqlite:///jobs.db", "no tables of provider calls"),
        ("mysql://host/name", "no store of the kind"),
    ],
)
def test_stores_that_cannot_be_looked_at(commands: ProviderCommands, url: str, told: str) -> None:
    """They are refused, and a look makes neither a file nor tables."""
    with JobClient("sqlite:///jobs.db"):
        pass
    before = sorted(each.name for each in commands.folder.glob("*.db"))
    assert commands("health", "--store", url) != 0
    assert told in commands.err
    assert sorted(each.name for each in commands.folder.glob("*.db")) == before
    assert commands("health", "--store", url) != 0
    assert told in commands.err


def test_no_store_at_all(commands: ProviderCommands) -> None:
    """It says where one can be named."""
    assert commands("health") == 2
    assert "[providers]" in commands.err


def test_names_cannot_steer_the_terminal(commands: ProviderCommands) -> None:
    """Whatever a tenant called itself is shown as text."""
    with closing(open_store(URL)) as store:
        store.extend_cooldown(LaneKey("\x1b[2Jevil", "rank", "snapshot"), time.time() + 9)
    assert commands("health", "--store", URL) == 0
    assert "\x1b" not in commands.out


# -- circuit ---------------------------------------------------------------------------------------


def test_a_circuit_is_opened_and_closed(commands: ProviderCommands) -> None:
    """The store has it, and the command says so."""
    began = time.time()
    assert commands("circuit", *LANE, "open", "--for", "600", "--store", URL) == 0
    assert commands.out.startswith("the circuit is open now")
    breaker = lane_state().breaker
    assert breaker.state is CircuitState.OPEN
    assert breaker.open_until is not None
    assert breaker.open_until >= began + 600
    assert commands("circuit", *LANE, "close", "--store", URL, "--json") == 0
    told = json.loads(commands.out)
    assert (told["before"], told["now"], told["open_until"]) == ("open", "closed", None)
    assert lane_state().breaker.state is CircuitState.CLOSED


def test_closing_forgets_the_streak(commands: ProviderCommands) -> None:
    """The next failure is the first again."""
    with closing(open_store(URL)) as store:
        assert store.compare_and_set(LANE, store.lane_state(LANE).version, Breaker(failures=4))
    assert commands("circuit", *LANE, "close", "--store", URL) == 0
    assert lane_state().breaker.failures == 0


def test_a_provider_obeys(commands: ProviderCommands) -> None:
    """A call after the command is not made, and is made again after the other."""

    class Rank(ProviderBase):
        provider_name, capability = "rank", "snapshot"

        def _execute_impl(self, **call: Any) -> dict[str, Any]:
            return {}

    def reason() -> str | None:
        with Rank(store=URL) as provider:
            result = provider.execute(
                tenant_id=TENANT,
                campaign_id=None,
                operation="fetch",
                payload={},
                context=ProviderExecutionContext(),
            )
            provider.flush()
            provider.store.close()
            return result.reason_code

    began = time.time()
    assert commands("circuit", *LANE, "open", "--for", "600", "--store", URL) == 0
    assert reason() == "circuit_open"
    # The provider's own cooldown is shorter, and does not make it that.
    assert (lane_state().breaker.open_until or 0.0) >= began + 600
    assert commands("circuit", *LANE, "close", "--store", URL) == 0
    assert reason() is None


def test_a_pause_is_shown_beside_a_closed_circuit(commands: ProviderCommands) -> None:
    """To open the circuit does not end it, and to close it does; the answer says so."""
    until = float(int(time.time()) + 3000)
    with closing(open_store(URL)) as store:
        store.extend_cooldown(LANE, until)
    assert commands("health", "--tenant", TENANT, "--store", URL) == 0
    assert f"closed, pause until {format_rfc3339(until)}" in commands.out
    assert commands("circuit", *LANE, "open", "--store", URL, "--json") == 0
    assert json.loads(commands.out)["pause_until"] == format_rfc3339(until)
    assert commands("circuit", *LANE, "close", "--store", URL) == 0
    told = " ".join(commands.out.split())
    assert f"the pause that the provider asked for, until {format_rfc3339(until)}, is over" in told
    assert commands("circuit", *LANE, "close", "--store", URL, "--json") == 0
    assert json.loads(commands.out)["pause_until"] is None
    assert lane_state(LANE).cooldown_until <= time.time()


def test_the_circuit_of_all_tenants(commands: ProviderCommands) -> None:
    """It is under the tenant *, once a provider has one."""
    shared = LaneKey("*", "rank", "snapshot")
    with closing(open_store(URL)) as store:
        store.compare_and_set(shared, 0, Breaker(failures=1))
    assert commands("circuit", *shared, "open", "--store", URL) == 0
    assert lane_state(shared).breaker.state is CircuitState.OPEN
    assert lane_state().breaker.state is CircuitState.CLOSED


@pytest.mark.parametrize(
    ("lane", "hint"),
    [
        ((TENANT, "rnk", "snapshot"), "rank snapshot"),
        (("nobody", "rank", "snapshot"), "ergon providers health"),
    ],
)
def test_a_lane_that_nobody_uses_gets_no_circuit(
    commands: ProviderCommands, lane: tuple[str, str, str], hint: str
) -> None:
    """A typing error is told with what there is."""
    assert commands("circuit", *lane, "open", "--store", URL) == 2
    assert hint in commands.err
    assert lane_state(LaneKey(*lane)).version == 0


@pytest.mark.parametrize("words", [("half_open",), ("open", "--for", "0"), ("open", "--for", "x")])
def test_wrong_use(commands: ProviderCommands, words: tuple[str, ...]) -> None:
    """Only open and close, for some time."""
    assert commands("circuit", *LANE, *words, "--store", URL) == 2
    assert lane_state().breaker.state is CircuitState.CLOSED


def test_a_change_that_was_not_written_is_an_error(
    commands: ProviderCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose store fails goes on by itself; an operator's command must not."""

    def fails(*_: Any) -> bool:
        raise StoreUnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqlProviderStore, "compare_and_set", fails)
        assert commands("circuit", *LANE, "open", "--store", URL) == 1
    assert "as it was" in commands.err
    assert lane_state().breaker.state is CircuitState.CLOSED


# -- prune -----------------------------------------------------------------------------------------


@pytest.mark.req("PEF:A-22")
def test_what_is_old_is_deleted_in_steps(
    commands: ProviderCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, however many steps it takes, and nothing younger."""
    old = time.time() - 40 * 86_400
    with closing(open_store(URL)) as store:
        rows = [row(f"old-{n}", tenant=TENANT) for n in range(35)]
        store.record(RecordBatch([each._replace(created_at=old) for each in rows]))
        assert store.attempts_of(rows[0].correlation_id)
    asked: list[int] = []
    whole = SqlProviderStore.prune

    def counted(self: SqlProviderStore, before: float, limit: int) -> int:
        asked.append(limit)
        return whole(self, before, min(limit, 10))  # as if ten were as many as fit into a step

    monkeypatch.setattr(SqlProviderStore, "prune", counted)
    assert commands("prune", "--older-than", "30", "--store", URL, "--json") == 0
    told = json.loads(commands.out)
    assert told["deleted"] >= 35
    assert told["before"].endswith("Z")
    assert set(asked) == {PRUNE_BATCH}
    assert len(asked) >= 4
    assert commands("prune", "--older-than", "30", "--store", URL, "--json") == 0
    assert json.loads(commands.out)["deleted"] == 0
    assert commands("health", "--tenant", TENANT, "--store", URL, "--json") == 0
    [item] = json.loads(commands.out)[0]["providers"]
    assert item["success_rate_1h"] == 1.0


@pytest.mark.parametrize(
    "words", [(), ("--older-than", "0"), ("--older-than", "x"), ("--older-than", "1e9")]
)
def test_how_old_must_be_said(commands: ProviderCommands, words: tuple[str, ...]) -> None:
    """And the last hour is not old: what is shown of it has to stay."""
    assert commands("prune", *words, "--store", URL) == 2
    assert commands("prune", "--older-than", "30", "--store", "sqlite:///other.db") == 1
    assert not (commands.folder / "other.db").exists()


@pytest.mark.slow
def test_postgresql_too(commands: ProviderCommands, postgres_url: str) -> None:
    """The same on a server."""
    with closing(open_store(postgres_url)) as store:
        store.record(RecordBatch([row("a", tenant=TENANT)]))
    assert commands("health", "--store", postgres_url, "--json") == 0
    assert [told["tenant_id"] for told in json.loads(commands.out)] == [TENANT]
    assert commands("circuit", *LANE, "open", "--store", postgres_url) == 0
    with closing(open_store(postgres_url)) as store:
        assert store.lane_state(LANE).breaker.state is CircuitState.OPEN
