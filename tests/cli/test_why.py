"""``ergon why`` for each kind of unit, and for ids that mean several things or nothing."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.journal import journalling
from ergon_framework.app.settings import load_settings
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import PEER
from ergon_framework.cli import invoke
from ergon_framework.connector.memory import MemoryConnector
from ergon_framework.connector.transaction import Transaction
from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import HeldBack
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.journal import JournalEntry
from ergon_framework.ports.providerstore import AttemptRow, DeadLetter, LaneKey, RecordBatch
from ergon_framework.providers.store_urls import open_store
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.task.exceptions import ExceptionType, TransactionException
from ergon_framework.task.ready import ConsumerTask
from tests.app.workplace import Workplace
from tests.cli.boundary_node import message, running
from tests.jobs.manual_worker import BROKEN, Hand

pytestmark = pytest.mark.req("ONE:why")

SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
default_executor = "python"

[executors.python]
command = ["python"]

[zones.plant-a]
data = "data"
listen = "127.0.0.1:0"
insecure = true
"""
LANE = LaneKey("t", "rank", "snapshot")
ROW = AttemptRow(
    id="r1",
    tenant_id="t",
    task_execution_id="job-1",
    provider_name="rank",
    capability="snapshot",
    operation="fetch",
    idempotency_key="job-1/abc",
    correlation_id="order-9",
    attempt_number=1,
    max_attempts=3,
    duration_ms=1500,
    timeout_budget_ms=None,
    outcome="retry",
    reason_code="timeout",
    retryable=True,
    http_status=504,
    created_at=1_700_000_000.0,
)


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, captured: Any) -> None:
        self.code, self.out, self.err = code, captured.out, captured.err

    @property
    def json(self) -> Any:
        """What a program reads."""
        return json.loads(self.out)


Why = Callable[..., Answer]


@pytest.fixture
def why(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Why:
    """The command, in a folder with settings and nothing else."""
    workplace.settings(SETTINGS)

    def run(*words: str) -> Answer:
        capsys.readouterr()
        return Answer(invoke(["why", *words]), capsys.readouterr())

    return run


# ---- nothing, and several ------------------------------------------------------------------------


def test_nothing_is_found_and_nothing_is_made(why: Why) -> None:
    """Exit code 1, every place that was looked at, and not one file more."""
    before = sorted(Path().iterdir())
    answer = why("nobody", "--json")
    assert answer.code == 1
    assert answer.json["error"]["code"] == "not_found"
    for place in ("the jobs in", "no journal yet", "zone plant-a in", "the provider calls in"):
        assert place in answer.err
    assert sorted(Path().iterdir()) == before


@pytest.mark.req("ONE:why")
@pytest.mark.parametrize("unit", ["h$(touch pwned)", "two words", "*", "-dash", "it's", "a;b"])
def test_a_hint_does_what_it_says_when_it_is_pasted(why: Why, unit: str) -> None:
    """An id is text of a user, and the store is the one that was asked."""
    with JobClient("sqlite:///work.db") as here, JobClient("sqlite:///other one.db") as other:
        for client in (here, other):
            client.enqueue("h", id=unit, max_attempts=1)
            Hand(client.store).run(BROKEN)
    said = why("--store", "sqlite:///other one.db", "--kind", "job", "--", unit).out
    (hint,) = re.findall(r"with fresh counters:  (ergon .*)$", said, re.MULTILINE)
    seen = subprocess.run(  # noqa: S603 - what we ourselves printed
        ["/bin/sh", "-c", f'ergon() {{ printf "%s\\0" "$@"; }}; {hint}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(path.name for path in Path().glob("pwned*")) == []
    assert invoke(seen.stdout.rstrip("\0").split("\0")) == 0
    with JobClient("sqlite:///work.db") as here, JobClient("sqlite:///other one.db") as other:
        assert [client.show(unit)["status"] for client in (here, other)] == ["failed", "pending"]


@pytest.mark.req("ONE:why")
def test_a_store_that_cannot_be_read_is_not_said_to_have_been_looked_at(why: Why) -> None:
    """The job may well be in there."""
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="real")
    Path("work.db").write_bytes(b"no database at all" * 100)
    answer = why("real", "--json")
    assert answer.code != 0
    assert answer.json["error"]["code"] != "not_found"
    assert not [each for each in answer.json["error"]["details"]["looked"] if "work.db" in each]
    assert "work.db" in " ".join(answer.json["error"]["details"]["troubles"])


@pytest.mark.parametrize("unit", ["", "  "])
def test_an_empty_id_is_refused(why: Why, unit: str) -> None:
    """It would match what has no id at all."""
    answer = why(unit)
    assert (answer.code, "an id is empty" in answer.err) == (2, True)


def test_without_settings(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that there was nowhere to look."""
    assert invoke(["why", "nobody"]) == 1
    assert "no journal" in capsys.readouterr().err


def test_an_id_of_several_things(why: Why) -> None:
    """All are told: one after the other for people, in a list under "found" for programs."""
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="both")
    with SqliteJournal("ergon-journal.db") as journal:
        ended = {"ending": "parked", "task": "Orders"}
        journal.write(
            [
                JournalEntry(
                    at=time.time(),
                    name="transaction.ended",
                    source="task orders",
                    unit="both",
                    fields=ended,
                )
            ]
        )
    shape = why("both", "--json").json
    assert shape["id"] == "both"
    assert [(each["kind"], each["status"]) for each in shape["found"]] == [
        ("job", "pending"),
        ("transaction", "parked"),
    ]
    page = why("both").out
    assert "Job both is pending." in page
    assert "Transaction both was last known to be parked, at 20" in page
    only = why("both", "--kind", "transaction", "--json").json
    assert (only["kind"], only["status"]) == ("transaction", "parked")


def test_trouble_in_one_place_hides_nothing(why: Why) -> None:
    """A journal that cannot be read is a note; the job is explained all the same."""
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="a")
    Path("ergon-journal.db").write_bytes(b"no database" * 500)
    answer = why("a", "--json")
    assert (answer.code, answer.json["kind"]) == (0, "job")
    assert "note: " in answer.err
    assert "ergon-journal.db" in answer.err
    assert why("a", "--kind", "transaction").code == 1


def test_a_server_that_keeps_jobs_alone(why: Why, postgres_url: str) -> None:
    """That it has no tables of provider calls is nothing to speak of."""
    with JobClient(postgres_url) as client:
        client.enqueue("h", id="a")
    answer = why("a", "--store", postgres_url)
    assert (answer.code, answer.err) == (0, "")
    assert why("b", "--store", postgres_url).code == 1


# ---- transactions --------------------------------------------------------------------------------


class Orders(ConsumerTask):
    """Refuses one order, and fails on another until it gives up."""

    def process_transaction(self, transaction: Any) -> Any:
        if transaction.transaction_id == "t2":
            raise TransactionException("nothing to charge", ExceptionType.BUSINESS)
        if transaction.transaction_id == "t3":
            raise ConnectionError("the bank is away")


def test_a_transaction(why: Why) -> None:
    """How it ended, how often it was tried, and each step of it; what succeeded is not there."""
    policy = {"steps": {"process": {"retry": {"max_attempts": 2, "backoff": 0.0}}}}
    queue = MemoryConnector([Transaction(f"t{n}", {"card": "4111-1111"}) for n in (1, 2, 3)])
    with journalling(load_settings(), "task orders"):
        Orders(connectors={"orders": queue}).consume_transactions(policy)
    shape = why("t3", "--json").json
    assert (shape["kind"], shape["id"], shape["status"]) == ("transaction", "t3", "failed")
    assert shape["why"][0].startswith("It failed in task Orders: ")
    assert "the bank is away" in shape["why"][0]
    assert shape["why"][1] == "It was tried again 1 time before."
    first, second, last = shape["why"][2:]
    assert "attempt 1 of process failed (ConnectionError: the bank is away); the next" in first
    assert second.endswith("attempt 2 of process failed (ConnectionError: the bank is away).")
    assert last.endswith("it ended as failed.")
    refused = why("t2").out
    assert refused.startswith("Transaction t2 failed.\nIt failed in task Orders: ")
    assert "nothing to charge" in refused
    assert "4111-1111" not in refused + json.dumps(shape)
    succeeded = why("t1")
    assert succeeded.code == 1
    assert "journal_all = true" in succeeded.err


def test_a_transaction_that_waits(why: Why) -> None:
    """The last word about it was that another attempt follows."""
    failure = {"kind": "transient", "code": "error", "message": "again."}
    fields = {"task": "Orders", "phase": "process", "delay": 90.0, "failure": failure}
    with SqliteJournal("ergon-journal.db") as journal:
        told = JournalEntry(
            at=time.time(), name="retry.scheduled", source="x", unit="t1", fields=fields
        )
        journal.write([told] * 15)
    shape = why("t1", "--json").json
    assert shape["status"] == "retrying"
    assert shape["as_of"].endswith("Z")
    assert why("t1").out.startswith(
        f"Transaction t1 was last known to be retrying, at {shape['as_of']}."
    )
    assert shape["why"][0] == (
        "Another attempt of process in task Orders was to follow 90.0 seconds later: error: again."
    )
    assert "a success in another process is in the journal only with journal_all" in shape["why"][1]
    assert shape["why"][2].startswith("3 older entries")


def test_a_transaction_that_recovered(why: Why) -> None:
    """Its good end is there although good ends are routine, because its trouble is there."""

    class Recovers(ConsumerTask):
        attempts = 0

        def process_transaction(self, transaction: Any) -> None:
            del transaction
            Recovers.attempts += 1
            if Recovers.attempts == 1:
                raise ConnectionError("the bank is away")

    policy = {"steps": {"process": {"retry": {"max_attempts": 2, "backoff": 0.0}}}}
    with journalling(load_settings(), "task orders"):
        queue = MemoryConnector([Transaction("t1", {}), Transaction("t2", {})])
        Recovers(connectors={"orders": queue}).consume_transactions(policy)
    answer = why("t1")
    assert answer.out.startswith("Transaction t1 succeeded.\nIt succeeded in task Recovers.\n")
    assert "It was tried again 1 time before." in answer.out
    assert why("t2").code == 1


def test_a_parked_transaction(why: Why) -> None:
    """What held it and when it was to come again; a completed job of its id says it is over."""
    held = {"kind": "held", "code": "circuit_open", "retry_after": 6.0}
    attempt = {"task": "Orders", "phase": "process", "attempt": 1, "failure": held}
    ended = {"task": "Orders", "ending": "parked", "failure": held}
    with SqliteJournal("ergon-journal.db") as journal:
        for name, fields in (("attempt.ended", attempt), ("transaction.ended", ended)):
            told = JournalEntry(at=time.time(), name=name, source="x", unit="t1", fields=fields)
            journal.write([told])
    told = why("t1", "--json").json["why"]
    assert told[0] == "It was parked in task Orders, since a gate was closed: circuit_open."
    assert told[1].endswith("no attempt; its source was to bring it again 6.0 seconds later.")
    assert told[3].endswith("process was held by a gate (circuit_open).")
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="t1")
    assert "if it came from there" not in why("t1").out
    with closing(sqlite3.connect("work.db")) as store, store:
        store.execute("UPDATE ergon_jobs SET status = 'completed'")
    only = why("t1", "--kind", "transaction").out
    assert "The job of this id is completed: if it came from there, it is over." in only


def test_the_last_word_of_many_is_the_last(why: Why) -> None:
    """However often it was parked before it failed."""
    parked = {"task": "Orders", "ending": "parked"}
    failed = {"task": "Orders", "ending": "failed", "failure": {"code": "ValueError"}}

    def ended(fields: dict[str, Any]) -> JournalEntry:
        at = time.time()  # what is old would be swept
        return JournalEntry(at=at, name="transaction.ended", source="x", unit="t1", fields=fields)

    with SqliteJournal("ergon-journal.db") as journal:
        journal.write([ended(parked)] * 1200)
        journal.write([ended(failed)])
    assert why("t1", "--json").json["status"] == "failed"


# ---- jobs ----------------------------------------------------------------------------------------


def test_a_parked_job_names_its_gate(why: Why) -> None:
    """Which circuit or quota of which provider holds it, and until when."""
    held = HeldBack(Failure(Kind.HELD, "circuit_open", "the circuit is open", 600.0))
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="job-1")
        Hand(client.store).run(held)
    with closing(open_store("sqlite:///work.db")) as store:
        refused = ROW._replace(attempt_number=0, outcome="failed", reason_code="circuit_open")
        store.record(RecordBatch([refused]))
        now = store.now()
        store.compare_and_set(LANE, 0, Breaker(CircuitState.OPEN, 5, now + 600, generation=1))
        window = QuotaWindow(now - 10, now + 1000)
        store.reserve(LANE, window, 1, 1)
    shape = why("job-1", "--kind", "job", "--json").json
    assert (shape["kind"], shape["status"]) == ("job", "pending")
    told = " ".join(shape["why"])
    assert "It is held (circuit_open: the circuit is open)" in told
    assert "No attempt was charged." in told
    assert "The circuit of rank/snapshot is open until" in told
    assert "after 5 failures" in told
    assert "The quota of rank/snapshot is used up (1 of 1) until" in told


def test_a_job_that_is_gone(why: Why) -> None:
    """What was told about it outlives its record."""
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="other")
        Hand(client.store).run(BROKEN)
    with SqliteJournal("ergon-journal.db") as journal:
        failure = {"code": "handler_error", "message": "no good"}
        fields = {"failure": failure, "attempt": 3}
        journal.write(
            [
                JournalEntry(
                    at=time.time(), name="job.dead_lettered", source="w", unit="j", fields=fields
                )
            ]
        )
    shape = why("j", "--json").json
    assert (shape["kind"], shape["status"]) == ("job", "gone")
    assert "failure handler_error: no good; attempt 3" in shape["why"][1]


# ---- provider calls ------------------------------------------------------------------------------


LETTER = DeadLetter(
    dead_letter_id="letter-1",
    tenant_id="t",
    campaign_id=None,
    task_name="rank.snapshot",
    provider_name="rank",
    capability="snapshot",
    operation="fetch",
    idempotency_key="job-1/abc",
    correlation_id="order-9",
    reason_code="timeout",
    error_type="ProviderTimeoutError",
    error_message="no answer",
    attempts=2,
    occurred_at=1_700_000_005.0,
    payload={"card": "4111-1111"},
)


@pytest.fixture
def calls(why: Why) -> Iterator[None]:
    """A call that was retried and given up with a dead letter."""
    last = ROW._replace(id="r2", attempt_number=2, outcome="dead_letter", created_at=1.7e9 + 5)
    other = replace(LETTER, dead_letter_id="letter-2", idempotency_key="x", correlation_id="y")
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(RecordBatch([ROW, last], [LETTER, other]))
        store.extend_cooldown(LANE, store.now() + 300)
        yield


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("unit", ["order-9", "job-1", "job-1/abc", "letter-1"])
def test_a_provider_call(why: Why, unit: str) -> None:
    """Found by each of its names: attempts with their reasons, its lane now, its dead letter."""
    shape = why(unit, "--json").json
    assert (shape["kind"], shape["id"], shape["status"]) == ("call", unit, "dead_letter")
    told = "\n".join(shape["why"])
    if unit != "letter-1":
        assert "attempt 1 of 3, failed after 1.5 seconds (timeout, HTTP status 504);" in told
        assert "another attempt was to follow" in told
        assert "it was given up with a dead letter" in told
    assert "asked for a pause until" in told
    assert "Its dead letter letter-1 waits to be carried to its queue" in told
    assert "letter-2" not in told
    assert "4111-1111" not in told


@pytest.mark.parametrize("unit", ["order-9", "job-1/abc"])
def test_the_calls_of_each_tenant_are_told_apart(why: Why, unit: str) -> None:
    """The same key means another call to another tenant, however many attempts the first made."""
    theirs = ROW._replace(id="r2", tenant_id="globex", outcome="success", created_at=1.7e9 - 5)
    many = [ROW._replace(id=f"m{n}", created_at=1.7e9 + n / 1000) for n in range(300)]
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(RecordBatch([*many, theirs], [replace(LETTER, attempts=300)]))
    found = why(unit, "--json").json["found"]
    statuses = {each["tenant"]: each["status"] for each in found}
    assert statuses == {"globex": "success", "t": "dead_letter"}
    told = {each["tenant"]: " ".join(each["why"]) for each in found}
    assert "succeeded after" in told["globex"]
    assert ("letter-1" in told["globex"], "letter-1" in told["t"]) == (False, True)
    answer = why(unit).out
    assert f"Call {unit} of tenant globex succeeded." in answer
    assert f"Call {unit} of tenant t was given up and is a dead letter." in answer


@pytest.mark.parametrize("unit", ["order-9", "job-1", "job-1/abc"])
def test_a_call_that_left_only_a_dead_letter(why: Why, unit: str) -> None:
    """A worker that is killed writes no attempts, and the next one gives the call up."""
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(RecordBatch([], [LETTER]))
    shape = why(unit, "--json").json
    assert (shape["kind"], shape["status"], shape["tenant"]) == ("call", "dead_letter", "t")
    assert "Its dead letter letter-1 waits" in " ".join(shape["why"])


def test_a_dead_letter_that_came_after_the_last_attempt(why: Why) -> None:
    """It says how the call ended; the attempt before it does not."""
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(RecordBatch([ROW], [LETTER]))
    assert why("order-9", "--json").json["status"] == "dead_letter"


def test_a_dead_letter_among_very_many(why: Why) -> None:
    """However many of its tenant came later, and of one id the newest are told."""
    later = [
        replace(
            LETTER,
            dead_letter_id=f"later-{n}",
            idempotency_key=f"k{n}",
            correlation_id="batch",
            occurred_at=1.7e9 + 10 + n,
        )
        for n in range(1_010)
    ]
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(RecordBatch([ROW], [LETTER, *later]))
    assert "Its dead letter letter-1" in why("order-9").out
    told = why("batch").out
    assert "1000 older dead letters are left out." in told
    assert "Its dead letter later-1009" in told


def test_the_hint_about_a_dead_letter_does_what_it_says_when_it_is_pasted(why: Why) -> None:
    """It names the letter and the store; where the call cannot be sent again, it says that."""
    secret = replace(LETTER, dead_letter_id="secret", has_secrets=True, occurred_at=1.6e9)
    for file in ("work", "other one"):
        with closing(open_store(f"sqlite:///{file}.db")) as store:
            store.record(RecordBatch([], [LETTER, secret]))
    said = why("order-9", "--store", "sqlite:///other one.db").out
    (hint,) = re.findall(r"This sends it again:  ergon (.*)$", said, re.MULTILINE)
    assert "It cannot be sent again: its payload had secrets" in said
    assert invoke(shlex.split(hint)) == 0
    for file, status in (("work", "pending"), ("other one", "redrive")):
        with closing(open_store(f"sqlite:///{file}.db")) as store:
            assert [each.status for each in store.letters(ids=["letter-1"])] == [status]


OWN_STORE = """
[providers.crm]
provider = "shop:Crm"
store = "sqlite:///crm.db"
"""


def test_a_provider_with_a_store_of_its_own(why: Why, workplace: Workplace) -> None:
    """Its calls, and the gate that holds a job, are found there; the other store is as it was."""
    workplace.settings(SETTINGS + OWN_STORE)
    held = HeldBack(Failure(Kind.HELD, "circuit_open", "the circuit is open", 600.0))
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="job-1")
        Hand(client.store).run(held)
    with closing(open_store("sqlite:///crm.db")) as store:
        store.record(RecordBatch([ROW._replace(attempt_number=0, outcome="failed")]))
        store.compare_and_set(
            LANE, 0, Breaker(CircuitState.OPEN, 5, store.now() + 600, generation=1)
        )
    assert why("order-9", "--json").json["kind"] == "call"
    told = " ".join(why("job-1", "--kind", "job", "--json").json["why"])
    assert "The circuit of rank/snapshot is open until" in told
    missing = why("nothing").err
    assert "crm.db" in missing
    assert "work.db" in missing


def test_one_store_of_calls_in_trouble_hides_no_other(why: Why, workplace: Workplace) -> None:
    """What the other one knows is told, and the trouble with it."""
    workplace.settings(SETTINGS + OWN_STORE)
    with closing(sqlite3.connect("work.db")) as broken:
        broken.execute("CREATE TABLE provider_execution_metrics (id)")
    with closing(open_store("sqlite:///crm.db")) as store:
        store.record(RecordBatch([ROW]))
    answer = why("order-9", "--json")
    assert answer.json["kind"] == "call"


@pytest.mark.usefixtures("calls")
def test_a_name_with_a_wildcard_is_only_itself(why: Why) -> None:
    """What SQL makes of a percent sign must not find the calls of others."""
    assert why("%").code == 1
    assert why("job_1").code == 1


# ---- facts ---------------------------------------------------------------------------------------


@pytest.fixture
def node(why: Why) -> Iterator[str]:
    """The zone's node, with two facts and two readers."""
    settings = ZoneSettings(data=str(Path("data").absolute()), listen="127.0.0.1:0", insecure=True)
    with running(settings) as address:
        url = f"http://{address}"
        Path("facts").write_bytes(message("m-1") + b"\n" + message("m-2") + b"\n")
        boundary("append", "--batch", "facts", "--url", url)
        boundary("consumers", "create", "ledger", "--log", "outbound", "--url", url)
        boundary("consumers", "create", f"{PEER}hq", "--log", "outbound", "--url", url)
        boundary("fetch", "ledger", "--limit", "1", "--confirm", "--url", url)
        yield url


def boundary(*words: str) -> None:
    """A command that must work."""
    assert invoke(["boundary", *words]) == 0


def test_a_fact_in_the_folder_of_its_zone(why: Why, node: str) -> None:
    """Where it lies, who has it, and for whom it waits; found without asking the node."""
    first = why("m-1", "--json").json
    assert (first["kind"], first["status"]) == ("fact", "waiting")
    assert first["why"][0].startswith(
        "Zone plant-a has it in its outbound log, at offset 1, since "
    )
    assert "The consumer ledger has confirmed it." in first["why"]
    assert "Zone hq has not pulled it: its cursor is at 0, and it is the next." in first["why"]
    second = why("m-2", "--json").json["why"]
    assert any("1 offset before it come first" in each for each in second)
    assert "batch:7" not in json.dumps(first)


def test_a_fact_at_a_node(why: Why, node: str) -> None:
    """The same from the node itself, as from another machine."""
    shape = why("m-1", "--node", node, "--json").json
    assert shape["status"] == "waiting"
    assert "The consumer ledger has confirmed it." in shape["why"]
    missing = why("m-9", "--node", node)
    assert missing.code == 1
    assert f"the node at {node}" in missing.err


def test_a_sealed_link_and_a_quarantine(why: Why, node: str) -> None:
    """A shut gate and a fact that was set aside are named with what to do."""
    boundary("seal", "--peer", "hq", "--reason", "audit", "--url", node)
    boundary("fetch", "ledger", "--limit", "1", "--url", node)
    from ergon_framework.boundary.http.client import HttpTransport

    with closing(HttpTransport(node)) as transport:
        body = {"consumer_name": "ledger", "offset": 2, "reason": "handler_failed"}
        body |= {"message": "no such account", "attempts": 3}
        transport.call(
            "bsfg.v1.BoundaryAdmin/QuarantineFact", json.dumps(body).encode(), timeout=30.0
        )
    shape = why("m-2", "--json").json
    assert shape["status"] == "quarantined"
    told = "\n".join(shape["why"])
    assert (
        "an operator sealed the link (audit), ergon boundary open --zone plant-a opens it" in told
    )
    assert "after 3 attempts (handler_failed: no such account)" in told
    assert "ergon boundary quarantine release 1 --zone plant-a lets it" in told


def test_a_refused_fact(why: Why) -> None:
    """No zone has it, but the journal knows why."""
    with SqliteJournal("ergon-journal.db") as journal:
        fields = {"code": "invalid_argument", "why": "field_missing"}
        journal.write(
            [
                JournalEntry(
                    at=time.time(), name="fact.refused", source="z", unit="m-7", fields=fields
                )
            ]
        )
    shape = why("m-7", "--json").json
    assert (shape["kind"], shape["status"]) == ("fact", "refused")
    assert "why field_missing" in shape["why"][1]
