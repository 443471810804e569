"""The pages about provider calls name everything that the code has."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

import pytest
import typer

import ergon_framework.providers as package
from ergon_framework.cli.commands import app
from ergon_framework.core.circuit_breaker import CircuitState, Vote
from ergon_framework.core.provider_call import GuardEnd, RetryBudget
from ergon_framework.ports.notice import CATALOGUE
from ergon_framework.ports.providerstore import ABANDONED, AttemptOutcome, LetterStatus
from ergon_framework.providers.base import ProviderBase
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.decisions import (
    DECISIONS,
    Bury,
    Decision,
    DecisionOptions,
    Requeue,
    Spend,
)
from ergon_framework.providers.errors import ERROR_OF, ProviderError, Reason
from ergon_framework.providers.execution import (
    ProviderAttempt,
    ProviderExecutionContext,
    ProviderExecutionResult,
    QuotaSnapshot,
)
from ergon_framework.providers.functions import Provider
from ergon_framework.providers.mapping.clients import STATUS_REASONS
from ergon_framework.providers.migrations import HEAD, VERSION_TABLE
from ergon_framework.providers.models import metadata
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import RecorderStats
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.schemas import DeadLetterMessage, ProviderHealthItem
from ergon_framework.providers.synthetic import FaultProfile
from ergon_framework.providers.tasks import TaskGate, TaskOptions
from ergon_framework.providers.telemetry import OUTCOMES
from ergon_framework.storage import failpoints
from tests.docs.pages import ROOT, blocks

REFERENCE = "reference/providers.md"

REQUEUES = {
    Requeue.NEVER: "no",
    Requeue.BACKOFF: "after the backoff",
    Requeue.COOLDOWN_END: "when the pause ends",
    Requeue.WINDOW_END: "when the window ends",
    Requeue.OPEN_UNTIL: "when it lets calls in",
    Requeue.OPT_IN: "if `requeue_on` has it",
}
VOTES = {Vote.FAILURE: "against the provider", Vote.NEUTRAL: "none", None: "not asked"}
SPENDS = {
    Spend.SPENT: "spent",
    Spend.REFUND: "comes back",
    Spend.REFUND_IF_NEVER_SENT: "comes back if never sent",
    Spend.NONE: "none taken",
}
BURIALS = {Bury.ON_EXHAUSTION: "when used up", Bury.OPT_IN: "if `bury_on` has it"}


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(title: str, name: str = REFERENCE) -> str:
    """What stands under a heading, up to the next one of its rank or a higher one."""
    marks = title.partition(" ")[0]
    text = page(name).partition(f"\n{title}\n")[2]
    assert text, title
    return re.split(rf"^#{{1,{len(marks)}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, str]:
    """The rows of the tables in a text: what stands behind each name of the first column."""
    found = re.findall(r"^\| (`[^|]+`) \| (.*) \|$", text, re.MULTILINE)
    return {name: rest for names, rest in found for name in re.findall(r"`([^`]+)`", names)}


# ---- what follows from a reason ------------------------------------------------------------------


def decided(reason: Reason, decision: Decision) -> str:
    """A row of the table, as the page has it."""
    return (
        f"| `{reason.value}` | {'yes' if decision.retries else 'no'} | {REQUEUES[decision.requeue]}"
        f" | {VOTES[decision.vote]} | {SPENDS[decision.quota]} | {BURIALS[decision.bury]} |"
    )


@pytest.mark.req("PROVIDERS:pipeline")
def test_the_decision_table_of_the_page_is_that_of_the_code() -> None:
    """Cell by cell, and no row more or less."""
    shown = re.findall(r"^\| `.*\|$", section("### What follows from a reason"), re.MULTILINE)
    assert sorted(shown) == sorted(decided(*each) for each in DECISIONS.items())


def test_the_page_that_gives_reasons_agrees_with_the_table() -> None:
    """Which reasons are retried, count, and come back, is said in words there."""
    text = section("### Which failures count", "why.md")
    for reason, decision in DECISIONS.items():
        [line] = re.findall(rf"^\| `{reason.value}` \|.*$", text, re.MULTILINE)
        _, _, retried, counts, why, _ = (cell.strip() for cell in line.split("|"))
        assert retried == ("yes" if decision.retries else "no"), reason
        assert counts == ("yes" if decision.vote is Vote.FAILURE else "no"), reason
        assert why, reason


# ---- arguments, fields, words --------------------------------------------------------------------


def defaults(kind: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a constructor, with what they are unless given."""
    for name, parameter in inspect.signature(kind).parameters.items():
        value = parameter.default
        if name != "self" and not name.startswith("_"):
            yield name, "required" if value is inspect.Parameter.empty else value


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        (ProviderBase.__init__, "### Arguments"),
        (Provider.__init__, "## Provider"),
        (RetryPolicy, "### RetryPolicy"),
        (CircuitBreaker, "### CircuitBreaker"),
        (QuotaPolicy, "### QuotaPolicy"),
        (RetryBudget, "### RetryBudget"),
        (DecisionOptions, "### DecisionOptions"),
        (TaskOptions, "## Tasks"),
    ],
)
@pytest.mark.req("PROVIDERS:package")
def test_the_reference_has_every_argument_with_its_default(
    kind: Callable[..., Any], title: str
) -> None:
    """What nobody documents nobody finds; what nobody has any more is gone from the page."""
    shown = rows(section(title))
    given = dict(defaults(kind))
    given.pop("options", None)  # those of ProviderBase
    for name, default in given.items():
        row = shown.get(name)
        assert row is not None, name
        assert row.partition(" | ")[0] == _spelt(default), (name, default, row)
    if title not in ("## Tasks", "## Provider"):  # where more tables follow
        assert shown.keys() == given.keys()


def _spelt(default: Any) -> str:
    if isinstance(default, frozenset):
        return "all" if default else "none"
    return "time.time" if callable(default) else str(default)


def test_the_reference_has_every_option_of_the_celery_task() -> None:
    """Those of Celery that are set otherwise than usual included."""
    from ergon_framework.providers.celery_task import CeleryProviderTask

    shown = rows(section("## Tasks"))
    left_out = {"abstract", "provider_factory", "ignore_result", "max_retries", "throws"}
    left_out |= {"resultrepr_maxsize", "name"}
    own = {
        name: value
        for name, value in vars(CeleryProviderTask).items()
        if not name.startswith("_") and not callable(value) and name not in left_out
    }
    own.pop("provider", None)
    for name, value in own.items():
        assert name in shown, name
        assert shown[name].partition(" | ")[0] == _spelt(value), (name, value)


def test_the_reference_has_every_field_of_a_context() -> None:
    """Each with its default."""
    shown = rows(section("## Context and result").partition("`ProviderExecutionResult`:")[0])
    for each in fields(ProviderExecutionContext):
        default = {} if each.default is MISSING else each.default
        assert shown.get(each.name, "").startswith(f"{default} |"), each.name


@pytest.mark.parametrize(
    "kind", [ProviderExecutionResult, ProviderAttempt, QuotaSnapshot, RecorderStats]
)
def test_the_reference_names_every_field(kind: Any) -> None:
    """Also of what is inside a result."""
    text = section("### Records" if kind is RecorderStats else "## Context and result")
    names = inspect.signature(kind).parameters
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.req("PEF:E-12")
def test_the_reference_has_every_error_with_its_reason() -> None:
    """Ten of them, and what each has to tell."""
    shown = rows(section("## Errors").partition("###")[0])
    assert {code: row.partition("`")[2].partition("`")[0] for code, row in shown.items()} == {
        code: kind.__name__ for code, kind in ERROR_OF.items()
    }
    told = {*vars(ProviderError("x")), "reason_code", "retryable"}
    assert [name for name in told if f"`{name}`" not in section("## Errors")] == []


def test_the_reference_has_every_stop_reason() -> None:
    """No more, no less."""
    assert rows(section("### Stop reasons")).keys() == {*GuardEnd} | {ABANDONED, "stop_reason"}


def test_the_reference_has_every_http_status_with_a_reason_of_its_own() -> None:
    """And the reason it stands for."""
    text = section("### What an exception means")
    table = re.findall(r"^\| ([\d, ]+) \| `(\w+)`", text, re.MULTILINE)
    shown = {int(status): reason for listed, reason in table for status in listed.split(", ")}
    assert shown == {status: reason.value for status, reason in STATUS_REASONS.items()}


@pytest.mark.parametrize("words", [CircuitState, AttemptOutcome, TaskGate])
def test_the_reference_has_every_word(words: Any) -> None:
    """Those that rows, results and options hold."""
    assert [each.value for each in words if f"`{each.value}`" not in page(REFERENCE)] == []


# ---- tables, failpoints, notices, commands -------------------------------------------------------


@pytest.mark.req("PROVIDERS:storage")
def test_the_reference_has_every_table_and_column() -> None:
    """In the order of the tables."""
    shown = rows(section("### Tables"))
    for name, table in metadata.tables.items():
        columns = shown[name].partition(" | ")[2]
        assert re.findall(r"`(\w+)`", columns) == list(table.columns.keys()), name
    assert f"(`{HEAD}`)" in section("### Tables")
    assert f"`{VERSION_TABLE}`" in section("### Tables")


def test_the_reference_has_every_failpoint() -> None:
    """A place where dying is interesting is worth a line."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not re.search(r"\.migrations\.(env|versions)", module.name):  # Alembic runs those
            importlib.import_module(module.name)
    names = {name for name in failpoints.NAMES if name.startswith("providers.")}
    assert names
    assert rows(section("## Failpoints")).keys() == names


@pytest.mark.parametrize("prefix", ["circuit.", "cooldown.", "records.", "key.", "relay."])
def test_the_page_on_telemetry_has_every_notice_of_provider_calls(prefix: str) -> None:
    """Listeners know what to listen for."""
    text = page("reference/telemetry.md")
    names = [name for name in CATALOGUE if name.startswith(prefix)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_notice_of_provider_calls_is_in_the_catalogue() -> None:
    """What is told can be looked up with ``ergon notices``."""
    told: set[str] = set()
    for file in (ROOT / "src/ergon_framework/providers").rglob("*.py"):
        told |= set(re.findall(r"emit\(\s*\"([a-z_.]+)\"", file.read_text(encoding="utf-8")))
    assert told
    assert told - CATALOGUE.keys() == set()


@pytest.mark.req("PROVIDERS:cli")
@pytest.mark.parametrize("name", ["providers", "db", "dlq"])
def test_the_page_on_the_command_line_names_every_option(name: str) -> None:
    """Every command of the group, and every option of each."""
    text = section(f"## ergon {name}", "reference/cli.md")
    group: Any = typer.main.get_command(app)
    for word, command in group.commands[name].commands.items():
        assert f"`ergon {name} {word}" in text, word
        for parameter in command.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                assert any(f"`{option}" in text for option in parameter.opts), (word, parameter)


# ---- how-to pages --------------------------------------------------------------------------------


def test_the_pages_on_dead_letters_have_every_status_and_field() -> None:
    """Whoever reads the queue, or a listing, finds what a word means."""
    text = page("howto/redrive-provider-calls.md")
    assert rows(text).keys() >= {each.value for each in LetterStatus}
    assert [name for name in DeadLetterMessage.model_fields if f"`{name}`" not in text] == []
    celery = page("howto/provider-celery.md")
    assert [each for each in OUTCOMES.values() if f"`{each}`" not in celery] == []


def test_the_page_on_the_health_api_shows_every_field() -> None:
    """The example is a whole answer."""
    text = page("howto/mount-the-health-api.md")
    names = ProviderHealthItem.model_fields
    assert [name for name in names if f'"{name}"' not in text] == []


def test_the_page_on_testing_has_every_step_of_a_script() -> None:
    """Each step that stands in its table can be read, and none is missing."""
    table = section("## Faults by script", "howto/test-providers.md")
    steps = [step for step in rows(table) if step not in {"step", "fetch"}]
    FaultProfile(steps)
    assert {step.partition(":")[0] for step in steps} >= {
        *("ok", "slow", "hang", "timeout", "refused", "reset", "http", "garbage", "crash")
    }


def test_a_first_call_takes_less_than_twenty_lines() -> None:
    """As a function, and as a class."""
    found = [each.text for each in blocks(page("quickstart-providers.md"))]
    for word in ("Provider(", "ProviderBase)"):
        first = next(text for text in found if word in text)
        assert len([line for line in first.splitlines() if line.strip()]) < 20, word


def test_the_wrapper_of_an_http_api_takes_twenty_lines() -> None:
    """As the page says."""
    found = [each.text for each in blocks(page("howto/wrap-an-http-api.md"))]
    assert len(found[0].splitlines()) <= 20
