"""``ergon dlq`` for provider calls: beside jobs, and where there are no jobs."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from ergon_framework.jobs.client import JobClient
from ergon_framework.ports.providerstore import DeadLetter, LetterStatus, ProviderStore, RecordBatch
from ergon_framework.providers.store_urls import open_store
from tests.app.workplace import Workplace
from tests.jobs.manual_worker import BROKEN, Hand

pytestmark = pytest.mark.req("PROVIDERS:cli")

SETTINGS = """
[store]
url = "sqlite:///work.db"

[jobs]
default_executor = "python"

[executors.python]
command = ["python"]
"""
LETTER = DeadLetter(
    dead_letter_id="letter-0",
    tenant_id="t",
    campaign_id=None,
    task_name="rank.snapshot",
    provider_name="rank",
    capability="snapshot",
    operation="fetch",
    idempotency_key="k",
    correlation_id="c",
    reason_code="timeout",
    error_type="ProviderTimeoutError",
    error_message="no answer",
    attempts=3,
    occurred_at=1_700_000_000.0,
    retryable=True,
    payload={"q": 1},
)


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, captured: Any) -> None:
        self.code, self.out, self.err = code, captured.out, captured.err

    @property
    def json(self) -> Any:
        """What a program reads."""
        return json.loads(self.out)


Ergon = Callable[..., Answer]


@pytest.fixture
def ergon(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> Ergon:
    """The command, in a folder with settings."""
    workplace.settings(SETTINGS)

    def run(*words: str) -> Answer:
        return Answer(invoke(list(words)), capsys.readouterr())

    return run


@pytest.fixture
def store(ergon: Ergon) -> Iterator[ProviderStore]:
    """The store of the settings, with letters of all sorts."""
    with closing(open_store("sqlite:///work.db")) as store:
        letters = [
            LETTER,
            replace(LETTER, dead_letter_id="letter-1", provider_name="crawl", reason_code="rate"),
            replace(LETTER, dead_letter_id="secret", has_secrets=True, occurred_at=1.6e9),
            replace(LETTER, dead_letter_id="large", payload=None, occurred_at=1.6e9 + 1),
        ]
        store.record(RecordBatch([], letters))
        store.move_letter("letter-1", LetterStatus.PUBLISHED, when=[LetterStatus.PENDING])
        yield store


def status(letter_id: str) -> LetterStatus:
    """Where a letter stands."""
    with closing(open_store("sqlite:///work.db")) as store:
        (found,) = store.letters(ids=[letter_id])
        return found.status


def bury_a_job() -> None:
    """A job that failed for good."""
    with JobClient("sqlite:///work.db") as client:
        client.enqueue("h", id="job-0", max_attempts=1)
        Hand(client.store).run(BROKEN)


@pytest.mark.usefixtures("store")
def test_letters_are_listed_without_jobs(ergon: Ergon) -> None:
    """A store that has no jobs shows its letters, the newest first; the payload is not shown."""
    rows = ergon("dlq", "list", "--json").json
    assert [row["id"] for row in rows][2:] == ["large", "secret"]
    assert {row["kind"] for row in rows} == {"provider"}
    first = next(row for row in rows if row["id"] == "letter-0")
    assert (first["attempts"], first["reason_code"], first["status"]) == (3, "timeout", "pending")
    assert "payload" not in first
    told = ergon("dlq", "list").out
    assert "rank.snapshot" in told
    assert "kind" in told.splitlines()[0]


@pytest.mark.usefixtures("store")
def test_letters_and_jobs_are_in_one_list(ergon: Ergon) -> None:
    """With a column that tells them apart; each kind alone is an option."""
    bury_a_job()
    rows = ergon("dlq", "list", "--json").json
    assert {row["kind"] for row in rows} == {"job", "provider"}
    assert rows[0]["id"] == "job-0"
    assert len(ergon("dlq", "list", "--limit", "2", "--json").json) == 2
    (job,) = ergon("dlq", "list", "--kind", "job", "--json").json
    assert job["id"] == "job-0"
    assert len(ergon("dlq", "list", "--kind", "provider", "--json").json) == 4
    (one,) = ergon("dlq", "list", "--provider", "crawl", "--json").json
    assert one["id"] == "letter-1"
    assert len(ergon("dlq", "list", "--reason", "timeout", "--json").json) == 3
    assert len(ergon("dlq", "list", "--handler", "h", "--json").json) == 1


@pytest.mark.usefixtures("store")
def test_one_letter_is_shown_with_its_payload(ergon: Ergon) -> None:
    """A job is found as well; an id that nobody has is told."""
    bury_a_job()
    shape = ergon("dlq", "show", "letter-0", "--json").json
    assert (shape["payload"], shape["why_not_sendable"]) == ({"q": 1}, None)
    assert "too large" in ergon("dlq", "show", "large", "--json").json["why_not_sendable"]
    assert ergon("dlq", "show", "job-0", "--json").json["id"] == "job-0"
    assert ergon("dlq", "show", "nobody").code == 1
    missing = ergon("dlq", "show", "nobody", "--kind", "provider")
    assert (missing.code, "no dead letter 'nobody'" in missing.err) == (1, True)


@pytest.mark.usefixtures("store")
def test_a_letter_is_asked_back(ergon: Ergon) -> None:
    """Its status says so; a relay does the rest. Twice is once."""
    assert ergon("dlq", "requeue", "letter-0", "--json").json["requeued"] == 1
    assert status("letter-0") is LetterStatus.REDRIVE
    assert ergon("dlq", "requeue", "letter-0").code == 1


@pytest.mark.parametrize(
    ("became", "told"),
    [
        (LetterStatus.REDRIVE, "letter-0 is to be sent again already"),
        (LetterStatus.REDRIVEN, "letter-0 was sent again already, at 2"),
        (LetterStatus.DISCARDED, "letter-0 was discarded"),
    ],
)
def test_a_letter_that_was_dealt_with_is_not_said_to_be_missing(
    ergon: Ergon, store: ProviderStore, became: LetterStatus, told: str
) -> None:
    """What became of it is told, with what can be done."""
    store.move_letter("letter-0", became, when=[LetterStatus.PENDING])
    answer = ergon("dlq", "requeue", "letter-0")
    assert answer.code == 1
    assert told in " ".join(answer.err.split())
    assert status("letter-0") is became


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(("letter", "why"), [("secret", "secrets"), ("large", "too large")])
def test_a_letter_that_cannot_be_sent_again_is_refused(ergon: Ergon, letter: str, why: str) -> None:
    """With the reason, when it is named."""
    answer = ergon("dlq", "requeue", letter)
    assert (answer.code, why in answer.err) == (2, True)
    assert status(letter) is LetterStatus.PENDING


@pytest.mark.usefixtures("store")
def test_one_letter_that_cannot_be_sent_again_keeps_back_all_that_are_named(ergon: Ergon) -> None:
    """Exit code 2 says that nothing was started: no letter is marked, and no job goes back."""
    bury_a_job()
    answer = ergon("dlq", "requeue", "letter-0", "secret", "letter-1", "job-0")
    assert (answer.code, "nothing was requeued" in answer.err) == (2, True)
    assert (status("letter-0"), status("letter-1")) == (
        LetterStatus.PENDING,
        LetterStatus.PUBLISHED,
    )
    assert ergon("jobs", "show", "job-0", "--json").json["status"] == "failed"


def test_one_that_cannot_be_sent_again_in_another_store_keeps_back_all(
    ergon: Ergon, workplace: Workplace
) -> None:
    """Every store is looked at before the first is changed."""
    own = '\n[providers.crm]\nprovider = "shop:Crm"\nstore = "sqlite:///crm.db"\n'
    workplace.settings(SETTINGS + own)
    for file, name in (("work", "letter-0"), ("crm", "secret")):
        with closing(open_store(f"sqlite:///{file}.db")) as store:
            letter = replace(LETTER, dead_letter_id=name, has_secrets=name == "secret")
            store.record(RecordBatch([], [letter]))
    assert ergon("dlq", "requeue", "letter-0", "secret").code == 2
    assert status("letter-0") is LetterStatus.PENDING


@pytest.mark.usefixtures("store")
def test_all_that_can_be_sent_again_are(ergon: Ergon) -> None:
    """Those that cannot are counted; jobs are among all."""
    bury_a_job()
    dry = ergon("dlq", "requeue", "--all", "--dry-run", "--json").json
    assert dry == {"matched": 5, "requeued": 0, "dry_run": True, "refused": 2}
    done = ergon("dlq", "requeue", "--all", "--json").json
    assert done == {"matched": 5, "requeued": 3, "dry_run": False, "refused": 2}
    assert status("letter-1") is LetterStatus.REDRIVE


@pytest.mark.usefixtures("store")
def test_letters_are_deleted(ergon: Ergon) -> None:
    """By filter or all; those on their way back are spared unless they are named."""
    ergon("dlq", "requeue", "letter-0")
    assert ergon("dlq", "purge", "--reason", "rate", "--json").json["purged"] == 1
    assert ergon("dlq", "purge", "--kind", "provider", "--all", "--json").json["purged"] == 2
    assert status("letter-0") is LetterStatus.REDRIVE
    assert ergon("dlq", "purge", "letter-0", "--json").json["purged"] == 1
    assert ergon("dlq", "list", "--json").json == []


@pytest.mark.parametrize("command", ["requeue", "purge"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none"], "there is no dead-lettered job or provider call 'none'"),
        (["none", "--kind", "provider"], "there is no dead-lettered provider call 'none'"),
        (["none", "--kind", "job"], "there is no dead-lettered job 'none'"),
        (["--provider", "none"], "there is no such provider call"),
        (["--queue", "none"], "there is no such job"),
        (["none", "nobody"], "there is no such job or provider call"),
    ],
)
@pytest.mark.usefixtures("store")
def test_nothing_that_matches_is_called_what_it_is(
    ergon: Ergon, command: str, words: list[str], told: str
) -> None:
    """A call of a provider is no job."""
    bury_a_job()
    answer = ergon("dlq", command, *words)
    assert answer.code == 1
    assert told in " ".join(answer.err.split())


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "words",
    [
        ["dlq", "requeue", "none", "--kind", "provider"],
        ["dlq", "show", "none", "--kind", "provider"],
        ["providers", "circuit", "nobody", "rank", "snapshot", "open"],
    ],
)
def test_a_hint_names_the_store_that_was_asked(ergon: Ergon, words: list[str]) -> None:
    """So that the command of the hint works when somebody pastes it, from another folder too."""
    answer = ergon(*words, "--store", "sqlite:///work.db")
    (hint,) = re.findall(r":  ergon ([^()]*)\)", " ".join(answer.err.split("\n")))
    assert f"sqlite:///{Path('work.db').absolute()}" in hint
    assert ergon(*shlex.split(hint)).code == 0


@pytest.mark.usefixtures("store")
def test_a_store_of_letters_alone_knows_no_jobs(ergon: Ergon) -> None:
    """So nothing is said about them."""
    answer = ergon("dlq", "purge", "none")
    assert "there is no dead-lettered provider call 'none'" in " ".join(answer.err.split())


@pytest.mark.usefixtures("store")
def test_filters_of_both_kinds_contradict_each_other(ergon: Ergon) -> None:
    """The error says which option is about what."""
    for words in (
        ["--queue", "q", "--provider", "p"],
        ["--kind", "job", "--reason", "timeout"],
        ["--kind", "provider", "--handler", "h"],
    ):
        answer = ergon("dlq", "list", *words)
        assert (answer.code, "nothing in common" in answer.err) == (2, True)


@pytest.mark.usefixtures("store")
def test_old_letters_are_found_by_age(ergon: Ergon) -> None:
    """In seconds, as for jobs."""
    with closing(open_store("sqlite:///work.db")) as store:
        store.record(
            RecordBatch([], [replace(LETTER, dead_letter_id="new", occurred_at=time.time())])
        )
    words = ("dlq", "purge", "--kind", "provider", "--older-than", "3600", "--json")
    assert ergon(*words).json["purged"] == 4


def test_a_store_without_letters_is_a_store_of_jobs(ergon: Ergon) -> None:
    """Everything is as it was before there were providers."""
    bury_a_job()
    (row,) = ergon("dlq", "list", "--json").json
    assert "kind" not in row
    answer = ergon("dlq", "list", "--kind", "provider")
    assert (answer.code, "ergon db upgrade" in answer.err) == (2, True)


def test_providers_may_have_a_store_of_their_own(ergon: Ergon, workplace: Workplace) -> None:
    """``[providers] store`` in the settings."""
    workplace.settings(SETTINGS + '\n[providers]\nstore = "sqlite:///calls.db"\n')
    bury_a_job()
    with closing(open_store("sqlite:///calls.db")) as store:
        store.record(RecordBatch([], [LETTER]))
    rows = ergon("dlq", "list", "--json").json
    assert [row["id"] for row in rows] == ["job-0", "letter-0"]
    assert Path("calls.db").exists()


def test_each_provider_may_have_one(ergon: Ergon, workplace: Workplace) -> None:
    """``[providers.NAME] store``: its letters are with the others, and are dealt with."""
    own = '\n[providers.crm]\nprovider = "shop:Crm"\nstore = "sqlite:///crm.db"\n'
    workplace.settings(SETTINGS + own)
    for file, name in (("work", "letter-0"), ("crm", "letter-1")):
        with closing(open_store(f"sqlite:///{file}.db")) as store:
            store.record(RecordBatch([], [replace(LETTER, dead_letter_id=name)]))
    rows = ergon("dlq", "list", "--kind", "provider", "--json").json
    assert sorted(row["id"] for row in rows) == ["letter-0", "letter-1"]
    assert ergon("dlq", "show", "letter-1", "--json").json["payload"] == {"q": 1}
    limited = ergon("dlq", "requeue", "--kind", "provider", "--all", "--limit", "1", "--json")
    assert limited.json["requeued"] == 1
    assert ergon("dlq", "purge", "letter-1", "--json").json["purged"] == 1
    assert ergon("dlq", "show", "letter-1", "--kind", "provider").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--kind", "job"],
        ["list", "--kind", "provider"],
        ["show", "letter-0"],
        ["requeue", "--all"],
        ["purge", "--all"],
    ],
)
def test_a_file_that_is_not_there_is_told_and_not_made(
    arguments: list[str], workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in its name must not look like a store in which all is well."""
    before = sorted(Path().iterdir())
    assert invoke(["dlq", *arguments, "--url", "sqlite:///wrok.db"]) == 1
    captured = capsys.readouterr()
    assert "there is no file " in captured.err
    assert "/wrok.db (" in captured.err
    assert captured.out == ""
    assert sorted(Path().iterdir()) == before


def test_one_of_two_files_that_are_not_there(
    workplace: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where providers have a store of their own, that one is looked at, and the other not made."""
    workplace.settings(SETTINGS + '\n[providers]\nstore = "sqlite:///calls.db"\n')
    with closing(open_store("sqlite:///calls.db")) as store:
        store.record(RecordBatch([], [LETTER]))
    assert invoke(["dlq", "list", "--json"]) == 0
    assert "letter-0" in capsys.readouterr().out
    assert not Path("work.db").exists()


def test_no_store_at_all_is_told(workplace: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to write where."""
    assert invoke(["dlq", "list", "--kind", "provider"]) == 2
    assert "[providers]" in capsys.readouterr().err


PROJECT = """
from celery import Celery

from ergon_framework.providers.celery_task import CeleryProviderTask
from ergon_framework.providers.synthetic import SyntheticProvider

app = Celery("dlq_project", broker="memory://", backend="cache+memory://")


class RankTask(CeleryProviderTask):
    name = "rank.snapshot"
    provider_factory = staticmethod(lambda: SyntheticProvider(store="sqlite:///work.db"))


app.register_task(RankTask())
"""


@pytest.mark.usefixtures("store")
def test_the_letters_are_carried_on_request(ergon: Ergon) -> None:
    """What waits is published, what was asked back is sent, and what cannot be is not."""
    pytest.importorskip("celery")
    Path("dlq_project.py").write_text(PROJECT)
    assert ergon("dlq", "requeue", "letter-1").code == 0
    carried = ergon("dlq", "relay", "dlq_project:app", "--json")
    assert carried.json == {"published": 3, "redriven": 1}
    assert status("letter-1") is LetterStatus.REDRIVEN
    assert ergon("dlq", "relay", "dlq_project:nothing").code == 2


def test_a_letter_that_another_relay_is_sending_is_left_and_told(
    ergon: Ergon, store: ProviderStore
) -> None:
    """One that was killed while it sent: for a minute nobody else sends the same letter."""
    pytest.importorskip("celery")
    Path("dlq_project.py").write_text(PROJECT)
    name = "redrive 0 of letter-1"
    store.claim(LETTER.tenant_id, name, name, "another relay", 60.0, 60.0)
    assert ergon("dlq", "requeue", "letter-1").code == 0
    carried = ergon("dlq", "relay", "dlq_project:app", "--json")
    assert carried.json == {"published": 3, "redriven": 0, "left": 1}
    assert "another relay has begun to send it" in carried.err
    assert status("letter-1") is LetterStatus.REDRIVE
