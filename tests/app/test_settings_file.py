"""One file for every part: named policies, providers, and the names that lead to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.app.providers import provider_factory, providers_of
from ergon_framework.app.settings import Settings, load_settings
from ergon_framework.app.settings.stores import store_url
from ergon_framework.errors import SettingsError, WiringError
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.task.mixins.policies import ConsumerPolicy
from tests.app.workplace import Workplace

pytestmark = pytest.mark.req("ONE:settings")

TASKS = """
class Orders(ConsumerTask):
    def process_transaction(self, transaction):
        return transaction.id


class Ship(ProducerTask):
    def transactions(self):
        return []

    def produce_transaction(self, transaction):
        return None


class Again(MemoryConnector):
    redelivers = True


from ergon_framework.providers.base import ProviderBase


class Mail(ProviderBase):
    provider_name = "mail"
    capability = "send"

    def __init__(self, key="", **options):
        self.key, self.options = key, options
        super().__init__(**options)

    def _execute_impl(self, **call):
        return {}
"""
CONNECTOR = '[connectors.inbox]\ntype = "memory"\n'
ORDERS = '[tasks.orders]\ntask = "shop:Orders"\nconnectors = ["inbox"]\n'


@pytest.fixture
def shop(workplace: Workplace) -> Workplace:
    """A working directory with the module ``shop``."""
    workplace.module(TASKS)
    return workplace


def settings_of(shop: Workplace, text: str, **environ: str) -> Settings:
    """The settings with this text."""
    shop.settings(text)
    return load_settings(environ=environ)


def refusal(shop: Workplace, text: str, **environ: str) -> str:
    """What is said about settings with this text."""
    with pytest.raises(SettingsError) as caught:
        settings_of(shop, text, **environ)
    return str(caught.value)


# ---- policies -----------------------------------------------------------------------------------


def consumer_of(shop: Workplace, text: str) -> ConsumerPolicy | None:
    """The policy that the task ``orders`` is run with."""
    shop.settings(CONNECTOR + text)
    return shop.wire("orders").policies.consumer


def test_a_task_is_run_by_a_named_policy(shop: Workplace) -> None:
    """Whichever way it is named, it is the policy of the run."""
    named = "[policies.careful]\nloop.limit = 3\nsteps.process.retry.max_attempts = 2\n"
    for line in ('policy = "careful"\n', 'consumer = "careful"\n'):
        policy = consumer_of(shop, named + ORDERS + line)
        assert policy is not None
        assert (policy.loop.limit, policy.steps.process.retry.max_attempts) == (3, 2)


def test_what_a_task_says_itself_is_on_top(shop: Workplace) -> None:
    """Key by key: the rest of the named policy stays."""
    named = "[policies.careful]\nloop.limit = 3\nloop.batch = { size = 7, max_size = 9 }\n"
    own = 'policy = "careful"\nconsumer.loop = { limit = 4, batch.size = 8 }\n'
    policy = consumer_of(shop, named + ORDERS + own)
    assert policy is not None
    assert (policy.loop.limit, policy.loop.batch.size, policy.loop.batch.max_size) == (4, 8, 9)


def test_a_variable_is_on_top_of_both(shop: Workplace) -> None:
    """As everywhere."""
    text = CONNECTOR + "[policies.careful]\nloop.limit = 3\n" + ORDERS + 'policy = "careful"\n'
    environ = {"ERGON_TASKS__ORDERS__CONSUMER__LOOP__BATCH__SIZE": "5"}
    found = settings_of(shop, text, **environ).tasks["orders"].consumer
    assert found is not None
    assert (found.loop.limit, found.loop.batch.size) == (3, 5)
    environ = {"ERGON_POLICIES__CAREFUL__LOOP__LIMIT": "6"}
    assert settings_of(shop, text, **environ).policies["careful"].consumer.loop.limit == 6  # type: ignore[union-attr]


def test_one_policy_may_fit_both_sides(shop: Workplace) -> None:
    """A task takes it as what it is; a policy with steps of one side fits that side alone."""
    shop.settings(
        CONNECTOR
        + "[policies.short]\nloop.limit = 1\n[policies.shipping]\n"
        + "steps.produce.retry.max_attempts = 2\n"
        + ORDERS
        + 'policy = "short"\n[tasks.ship]\ntask = "shop:Ship"\npolicy = "short"\n'
        + '[tasks.wrong]\ntask = "shop:Orders"\nconnectors = ["inbox"]\npolicy = "shipping"\n'
    )
    assert shop.wire("orders").policies.producer is None
    producer = shop.wire("ship").policies.producer
    assert producer is not None
    assert producer.loop.limit == 1
    with pytest.raises(WiringError, match="'shipping' does not fit a consumer, which this task is"):
        shop.wire("wrong")


@pytest.mark.parametrize(
    ("policies", "line", "told"),
    [
        ("", 'policy = "careful"\n', "tasks.orders.policy: there is no policy 'careful'; none is"),
        ("[policies.b]\n", 'consumer = "a"\n', "tasks.orders.consumer: there is no policy 'a'"),
        ("[policies]\nb = 3\n", "", "policies.b: must be a table"),
        ('[policies."a b"]\n', "", "policies.a b: must be a name of letters"),
        ("[policies.b]\nlop = 3\n", "", "policies.b.lop: unknown key 'lop' in [policies.b]"),
        (
            "[policies.b]\nsteps.produce.retri = 3\n",
            "",
            "unknown key 'retri' in [policies.b.steps.produce]; did you mean 'retry'?",
        ),
    ],
)
def test_a_wrong_policy_is_named(shop: Workplace, policies: str, line: str, told: str) -> None:
    """With the key where it is wrong, or where it is asked for."""
    assert told in refusal(shop, CONNECTOR + policies + ORDERS + line)


def test_a_policy_that_is_wrong_is_not_called_missing(shop: Workplace) -> None:
    """One mistake is told once."""
    text = CONNECTOR + "[policies.b]\nlop = 3\n" + ORDERS + 'policy = "b"\n'
    assert "mistakes" not in refusal(shop, text)


# ---- a connector that has patience of its own ---------------------------------------------------


@pytest.mark.req("ONE:patience")
def test_attempts_do_not_multiply(shop: Workplace) -> None:
    """A source that delivers again takes tasks that try once."""
    inbox = '[connectors.inbox]\ntype = "shop:Again"\n'
    shop.settings(inbox + ORDERS + "consumer.steps.process.retry.max_attempts = 1\n")
    assert shop.wire("orders").kind.consumes
    shop.settings(inbox + ORDERS + "consumer.steps.process.retry.max_attempts = 2\n")
    with pytest.raises(WiringError, match="itself delivers again what failed, so 2 attempts"):
        shop.wire("orders")


# ---- providers ----------------------------------------------------------------------------------

MAIL = '[providers.mail]\nprovider = "shop:Mail"\n'


def test_a_provider_is_described_by_its_table(shop: Workplace) -> None:
    """Policies, times and the store become what the class takes; other keys are its options."""
    text = MAIL + (
        'key = "env:MAIL_KEY"\nquota = { limit = 9, window = 60 }\n'
        "retry = { max_attempts = 5, jitter = 0 }\nbreaker = { failure_threshold = 2 }\n"
        "timeout_budget = 7\nattempt_timeout = 3\n"
    )
    settings = settings_of(shop, '[store]\nurl = "sqlite:///work.db"\n' + text, MAIL_KEY="hunter2")
    assert "hunter2" not in repr(settings)
    maker = provider_factory("mail", settings)
    assert "hunter2" not in repr(maker)
    maker.check()
    options = dict(maker.options)
    breaker = options.pop("circuit_breaker")
    assert isinstance(breaker, CircuitBreaker)
    assert breaker.failure_threshold == 2
    assert options.pop("key").get_secret_value() == "hunter2"
    assert options == {
        "quota": QuotaPolicy(9, 60),
        "retry_policy": RetryPolicy(5, jitter_ratio=0),
        "timeout_budget_seconds": 7,
        "attempt_timeout_seconds": 3,
        "store": f"sqlite:///{shop.directory / 'work.db'}",
    }


@pytest.mark.parametrize("name", ["timeout", "timeout_seconds", "budget_seconds"])
def test_another_word_for_the_timeout_budget_is_refused(shop: Workplace, name: str) -> None:
    """It would be handed to the class as an option of its own, and might be taken for one."""
    wrong = f":3: providers.mail.{name}: is no key: write timeout_budget for the whole call"
    with pytest.raises(SettingsError, match=wrong):
        settings_of(shop, MAIL + f"{name} = 7\n")


def test_how_long_records_are_kept_is_said_for_all_providers(shop: Workplace) -> None:
    """One key for all, which the table of a provider overrides; what is not said is the class's."""
    other = MAIL.replace("mail", "post", 1) + "keep_records_seconds = 60\n"
    settings = settings_of(shop, "[providers]\nkeep_records = 86400\n" + MAIL + other)
    assert provider_factory("mail", settings).options == {"keep_records_seconds": 86400.0}
    assert provider_factory("post", settings).options == {"keep_records_seconds": 60}
    unsaid = settings_of(shop, MAIL)
    assert "keep_records_seconds" not in provider_factory("mail", unsaid).options
    with pytest.raises(SettingsError, match=r":2: providers\.keep_records: "):
        settings_of(shop, "[providers]\nkeep_records = 0\n" + MAIL)


def test_what_is_not_said_is_left_to_the_class(shop: Workplace) -> None:
    """Without a store all is in memory; a breaker can be left out."""
    settings = settings_of(shop, MAIL + "breaker = false\n")
    assert provider_factory("mail", settings).options == {"circuit_breaker": False}


def test_the_store_falls_back(shop: Workplace) -> None:
    """A provider's own, then that of all providers, then that of all parts."""
    text = '[store]\nurl = "sqlite:////s/a.db"\n'
    assert (
        provider_factory("mail", settings_of(shop, text + MAIL)).options["store"].endswith("a.db")
    )
    text += '[providers]\nstore = "sqlite:////s/b.db"\n'
    assert (
        provider_factory("mail", settings_of(shop, text + MAIL)).options["store"].endswith("b.db")
    )
    text += MAIL + 'store = "env:CALLS"\n'
    settings = settings_of(shop, text, CALLS="sqlite:///c.db")
    assert provider_factory("mail", settings).options["store"] == f"sqlite:///{Path.cwd() / 'c.db'}"
    assert store_url(settings) == "sqlite:////s/a.db"


def test_variables_reach_providers(shop: Workplace) -> None:
    """Numbers are read as such, and text for an option is taken for a secret."""
    environ = {
        "ERGON_PROVIDERS__MAIL__TIMEOUT_BUDGET": "2.5",
        "ERGON_PROVIDERS__MAIL__QUOTA": '{"limit": 3}',
        "ERGON_PROVIDERS__MAIL__KEY": "hunter2",
    }
    settings = settings_of(shop, MAIL, **environ)
    entry = providers_of(settings)["mail"]
    assert entry.quota is not None
    assert (entry.timeout_budget, entry.quota.limit) == (2.5, 3)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[providers]\nstor = 1\n", ":2: providers.stor: unknown key 'stor' in [providers]"),
        ('[providers.store]\nprovider = "a:b"\n', "so no provider can have that name"),
        ('[providers."a b"]\nprovider = "a:b"\n', "providers.a b: must be a name of letters"),
        ("[providers.mail]\n", "providers.mail.provider: provider is missing"),
        (
            '[providers.mail]\nquota = "1/day"\nkey = "k"\n',
            ":3: providers.mail.key: is an option",
        ),
        ("[providers.mail]\nquta = '1/day'\n", "module:Class\" beside it; did you mean 'quota'?"),
        ("[providers.mail]\nquota = '0/day'\n", "quota is refused: '0/day' is no quota"),
        (
            "[providers.mail]\nmax_lanes = 0\n",
            "max_lanes: max_lanes must be at least 1",
        ),
        ("[providers.mail]\ntimeout = 5\n", "write timeout_budget for the whole call"),
        (MAIL + "quota = { limit = 1, period = 'day', tz = 'Mars' }\n", "no time zone 'Mars'"),
        (MAIL + "retry = { jitter = 1 }\n", "jitter_ratio must be below 1"),
        (MAIL + "quota = { limt = 1 }\n", "unknown key 'limt' in [providers.mail.quota]; did you"),
        (MAIL + 'key = "env:NOT_SET"\n', "providers.mail.key: the environment variable 'NOT_SET'"),
    ],
)
def test_a_wrong_provider_is_named(shop: Workplace, text: str, told: str) -> None:
    """With its key, and what to write instead."""
    assert told in refusal(shop, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[providers.mail]\nprovider = "shop:Orders"\n', "it is no provider"),
        ('[providers.mail]\nprovider = "shop:Male"\n', "there is no 'Male' in shop"),
        (MAIL, "there is no provider 'male' .*; did you mean 'mail'?"),
        ("[providers.mail]\nquota = '1/day'\n", r"'mail' has no class.*app\.provider\(.mail.\)"),
    ],
)
def test_a_provider_that_cannot_be_made(shop: Workplace, text: str, told: str) -> None:
    """The class must be there, and a provider."""
    settings = settings_of(shop, text)
    name = "male" if "did you mean" in told else "mail"
    with pytest.raises((SettingsError, WiringError), match=told):
        provider_factory(name, settings).check()
