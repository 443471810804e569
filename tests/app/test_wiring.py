"""From a name to a checked plan. Nothing is built on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.app.wiring import Overrides, Role, TaskKind
from ergon_framework.errors import HookError, SettingsError, WiringError
from tests.app.workplace import Workplace

ORDERS = """
class Orders(ConsumerTask):
    def process_transaction(self, transaction):
        return None
"""
INBOX = """
[connectors.inbox]
type = "memory"
"""
ONE = f"""
[tasks.orders]
task = "shop:Orders"
connectors = ["inbox"]
{INBOX}
"""


def refusal(workplace: Workplace, target: str = "shop:Orders") -> str:
    """Why this cannot be wired; every refusal says what to do."""
    with pytest.raises((WiringError, SettingsError)) as caught:
        workplace.wire(target)
    assert caught.value.remedy
    return str(caught.value)


# ---- finding the task ---------------------------------------------------------------------------


def test_a_task_by_its_name_in_the_settings(workplace: Workplace) -> None:
    """The entry says which class, which connectors and which policy."""
    workplace.module(ORDERS)
    workplace.settings(ONE + "[tasks.orders.consumer]\nloop.limit = 7\n")
    wiring = workplace.wire("orders")
    assert wiring.name == "orders"
    assert wiring.task_name == "Orders"
    assert list(wiring.connectors) == ["inbox"]  # type: ignore[arg-type]
    assert wiring.policies.main(wiring.kind).loop.limit == 7


def test_a_class_that_stands_in_the_settings_is_that_task(workplace: Workplace) -> None:
    """Its reference means the same as its name."""
    workplace.module(ORDERS)
    workplace.settings(ONE)
    assert workplace.wire("shop:Orders").name == "orders"


def test_a_class_without_an_entry_gets_every_connector(workplace: Workplace) -> None:
    """A settings file with connectors alone is enough."""
    workplace.module(ORDERS)
    workplace.settings(INBOX)
    assert list(workplace.wire().connectors) == ["inbox"]  # type: ignore[arg-type]


def test_the_working_directory_is_searched(workplace: Workplace) -> None:
    """Modules beside the settings are found without being installed."""
    workplace.module(ORDERS, "a_module_of_the_working_directory")
    workplace.settings(INBOX)
    wiring = workplace.wire("a_module_of_the_working_directory:Orders")
    assert wiring.kind == TaskKind(Role.CONSUMER, is_async=False)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("ordres", "there is no task 'ordres' in the settings; did you mean 'orders'?"),
        ("shop:Order", "there is no 'Order' in shop (did you mean 'Orders'?)"),
        ("shpo:Orders", "there is no module 'shpo' (did you mean 'shop'?)"),
        ("shop.deep:Orders", "there is no module 'shop.deep'"),
        ("shop:Transaction", "shop:Transaction is a class, but no task"),
        ("shop:IMPORTANT", "shop:IMPORTANT is of type int, and no task"),
        ("shop:IMPORTANT", "what an App declares is run by the App, named as module:app"),
        ("broken:Orders", "broken.py, line 3: ZeroDivisionError: division by zero"),
        ("wrong:Orders", "wrong.py, line 1: SyntaxError"),
        ("leaving:Orders", "SystemExit: 3"),
        ("needy:Orders", "needy.py, line 1: ModuleNotFoundError: No module named 'nonexistent'"),
        ("not a name", "there is no task 'not a name'"),
    ],
)
def test_a_task_that_cannot_be_found(workplace: Workplace, target: str, text: str) -> None:
    """Each way of missing it is told with the nearest name, or with the line that broke."""
    workplace.module(ORDERS + "IMPORTANT = 1\n")
    workplace.settings(ONE)
    for name, content in {
        "broken": "def f():\n    pass\n1 / 0\n",
        "wrong": "def f(:\n",
        "leaving": "import sys\nsys.exit(3)\n",
        "needy": "import nonexistent\n",
    }.items():
        Path(f"{name}.py").write_text(content)
    assert text in refusal(workplace, target)


@pytest.mark.parametrize("other", ["Orders", "orders"])
def test_a_task_name_may_be_given_once(workplace: Workplace, other: str) -> None:
    """The same name twice is refused, also when only its case differs."""
    workplace.settings(f'[tasks.orders]\ntask = "a:B"\n[tasks.{other}]\ntask = "a:C"\n')
    told = refusal(workplace, "orders")
    assert "the same name" in told or "Cannot declare" in told


def test_a_class_with_two_names_needs_one_of_them(workplace: Workplace) -> None:
    """Which entry is meant would be a guess."""
    workplace.settings(ONE + '[tasks.others]\ntask = "shop:Orders"\n')
    assert "under several names: orders, others" in refusal(workplace)


# ---- connectors and services --------------------------------------------------------------------


@pytest.mark.req("T3.35")
def test_nothing_is_built_by_wiring(workplace: Workplace) -> None:
    """Not even a constructor is called before everything was checked."""
    workplace.module(
        ORDERS
        + """
class Explosive:
    def __init__(self, where="here"):
        raise AssertionError("built")

    def fetch_transactions(self, batch_size, **extra):
        return []
"""
    )
    workplace.settings('[connectors.inbox]\ntype = "shop:Explosive"\nwhere = "there"\n')
    workplace.wire()


@pytest.mark.req("T3.35")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ("", "Orders has no connector"),
        (INBOX + "[connectors.other]\ntype = 'memory'", "several connectors (inbox, other)"),
        (
            "[connectors.inbox]\ntype = 'memroy'",
            "no connector type 'memroy'; did you mean 'memory'?",
        ),
        ("[connectors.inbox]\ntype = 'shop:Missing'", "there is no 'Missing' in shop"),
        ("[connectors.inbox]\ntype = 'shop:NUMBER'", "int cannot be called to make it"),
        (
            "[connectors.inbox]\ntype = 'memory'\ncapcity = 3",
            "connector 'inbox' (memory): unknown option 'capcity' (did you mean 'capacity'?)",
        ),
        ("[connectors.inbox]\ntype = 'shop:Needy'", "the option 'url' is missing"),
        ("[connectors.inbox]\ntype = 'shop:Plain'\nurl = 1", "it takes no options"),
        ("[connectors.inbox]\ntype = 'shop:Async'", "connector 'inbox' (Async) is asynchronous"),
        ("[connectors.inbox]\ntype = 'shop:Plain'", "(Plain) has no fetch_transactions"),
        (INBOX + "[services.mail]\nfactory = 'shop:mail'\nhots = 1", "did you mean 'host'?"),
    ],
)
def test_parts_that_do_not_fit(workplace: Workplace, settings: str, text: str) -> None:
    """Unknown names, options and colours are refused, with what was probably meant."""
    workplace.module(
        ORDERS
        + """
NUMBER = 1

class Plain:
    pass

class Needy:
    def __init__(self, url):
        pass

class Async:
    async def fetch_transactions_async(self, batch_size, **extra):
        return []

def mail(host="localhost"):
    return None
"""
    )
    workplace.settings(settings)
    assert text in refusal(workplace)


@pytest.mark.req("T3.35")
def test_a_sync_connector_on_an_async_task(workplace: Workplace) -> None:
    """The other direction is refused, too."""
    workplace.module(
        """
class Sync:
    def fetch_transactions(self, batch_size, **extra):
        return []

class Orders(AsyncConsumerTask):
    async def process_transaction(self, transaction):
        return None
"""
    )
    workplace.settings('[connectors.inbox]\ntype = "shop:Sync"\n')
    assert "is synchronous: it has fetch_transactions but no" in refusal(workplace)


@pytest.mark.parametrize("kind", ["Wrapper", "Derived", "make"])
def test_what_cannot_be_looked_into_gets_the_benefit_of_the_doubt(
    workplace: Workplace, kind: str
) -> None:
    """A class with a ``__getattr__``, one that derives from a built-in, and a function."""
    workplace.module(
        ORDERS
        + """
class Wrapper:
    def __init__(self):
        self.inner = MemoryConnector()

    def __getattr__(self, name):
        return getattr(self.inner, name)

class Derived(dict):
    pass

def make():
    return MemoryConnector()
"""
    )
    workplace.settings(f'[connectors.inbox]\ntype = "shop:{kind}"\n')
    workplace.wire()


def test_an_instance_has_its_connectors(workplace: Workplace) -> None:
    """It is run as it is, and settings that would give it others are refused."""
    workplace.module(ORDERS + "task = Orders(connectors={'inbox': MemoryConnector()})\n")
    assert workplace.wire("shop:task").task_name == "Orders"
    workplace.settings(ONE.replace("shop:Orders", "shop:task"))
    assert "is an instance, which has its connectors already" in refusal(workplace, "orders")


def test_a_builder_is_called_without_arguments(workplace: Workplace) -> None:
    """A plain method cannot be called on the class; that is said before anything runs."""
    workplace.module(ORDERS + "    def build_connectors(self):\n        return {}\n")
    assert "make it a classmethod or a staticmethod" in refusal(workplace)


# ---- the task itself ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bases", "kind"),
    [
        ("ConsumerTask", TaskKind(Role.CONSUMER, is_async=False)),
        ("ConsumerMixin, BaseTask", TaskKind(Role.CONSUMER, is_async=False)),
        ("AsyncConsumerTask", TaskKind(Role.CONSUMER, is_async=True)),
        ("HybridTask", TaskKind(Role.HYBRID, is_async=False)),
        ("AsyncHybridTask", TaskKind(Role.HYBRID, is_async=True)),
    ],
)
def test_the_kinds_of_consuming_tasks(workplace: Workplace, bases: str, kind: TaskKind) -> None:
    """Role and colour come from the base classes; ``execute`` is not needed to consume."""
    word = "async def" if kind.is_async else "def"
    workplace.module(
        f"""
class Orders({bases}):
    {word} process_transaction(self, transaction):
        return None

    {word} produce_transaction(self, transaction):
        return None
"""
    )
    workplace.settings(INBOX)
    assert workplace.wire().kind == kind


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("class Orders(ConsumerTask):\n    pass", "Orders has no process_transaction"),
        (
            "class Orders(ConsumerTask):\n    async def process_transaction(self, it): ...",
            "is a coroutine function, but the task is synchronous",
        ),
        (
            "class Orders(ConsumerTask):\n    process_transaction = 3",
            "Orders.process_transaction is int, which cannot be called",
        ),
        (
            "class Orders(ConsumerTask):\n    def process_transaction(self): ...",
            "cannot be called with 1 argument",
        ),
        (
            "class Orders(ProducerTask):\n    def produce_transaction(self, transaction): ...",
            "Orders has no transactions",
        ),
        (
            "class Orders(ProducerMixin, BaseTask):\n    def produce_transaction(self, it): ...",
            "Orders has no execute",
        ),
        ("class Orders(BaseTask):\n    pass", "Orders has no execute"),
        (
            "class Orders(ConsumerMixin, AsyncProducerMixin, BaseTask):\n    pass",
            "mixes synchronous and asynchronous mixins",
        ),
        (
            ORDERS + "    def __init__(self, url):\n        pass\n",
            "Orders: unknown option 'connectors' (known options are url)",
        ),
        (
            ORDERS + "    def execute(self, policy, more, evenmore):\n        pass\n",
            "Orders.execute cannot be called with its policy alone",
        ),
    ],
)
def test_tasks_that_cannot_run(workplace: Workplace, text: str, told: str) -> None:
    """A missing or wrong hook is found on the class, before anything is built."""
    workplace.module(text)
    workplace.settings(INBOX)
    assert told in refusal(workplace)


# ---- policies -----------------------------------------------------------------------------------


@pytest.mark.req("R3-K2")
def test_where_a_policy_comes_from(workplace: Workplace, tmp_path: Path) -> None:
    """The file wins over the settings, the settings over the module; the limit over all."""
    workplace.module(ORDERS + "policy = ConsumerPolicy(loop={'limit': 1})\n")
    workplace.settings(INBOX)
    wiring = workplace.wire()
    assert wiring.policies.main(wiring.kind).loop.limit == 1
    workplace.settings(ONE + "[tasks.orders.consumer]\nloop.limit = 2\nloop.batch.size = 9\n")
    wiring = workplace.wire()
    assert wiring.policies.main(wiring.kind).loop.limit == 2
    wiring = workplace.wire(overrides=Overrides(limit=4))
    assert wiring.policies.main(wiring.kind).loop.limit == 4
    assert wiring.policies.main(wiring.kind).loop.batch.size == 9
    (tmp_path / "policy.toml").write_text("[loop]\nlimit = 3\n")
    wiring = workplace.wire(overrides=Overrides(tmp_path / "policy.toml"))
    assert wiring.policies.main(wiring.kind).loop.limit == 3


@pytest.mark.req("R3-K2")
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            "{'loop': {'limt': 1}}",
            "shop.policy is no ConsumerPolicy: loop.limt: unknown key 'limt'",
        ),
        ("{'steps': {'process': {'retry': {'max_attempts': 0}}}}", "must be at least 1"),
        ("ProducerPolicy()", "is a ProducerPolicy, but this run needs a ConsumerPolicy"),
    ],
)
def test_wrong_policies_beside_the_task(workplace: Workplace, policy: str, told: str) -> None:
    """They are refused before an engine exists, with the key that is wrong."""
    workplace.module(ORDERS + f"policy = {policy}\n")
    workplace.settings(INBOX)
    assert told in refusal(workplace)


@pytest.mark.req("R3-K2")
@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("consumer.loop.limt = 1", "unknown key 'limt'"),
        ("consumer.steps.fetch.connector_name = 'inbxo'", "did you mean 'inbox'?"),
        ("producer.loop.limit = 1", "a producer policy is given, but Orders does not produce"),
    ],
)
def test_wrong_policies_in_the_settings(workplace: Workplace, entry: str, told: str) -> None:
    """The same for the settings file, and for a policy that nobody would look at."""
    workplace.module(ORDERS)
    workplace.settings(ONE.replace("[connectors", f"{entry}\n[connectors"))
    assert told in refusal(workplace, "orders")


def test_a_hybrid_may_take_both_policies(workplace: Workplace) -> None:
    """One that takes only the first is not silently robbed of the second."""
    hybrid = """
class Orders(HybridTask):
    def process_transaction(self, transaction):
        return None

    def produce_transaction(self, transaction):
        return None
"""
    entry = "producer.loop.limit = 1\n"
    workplace.module(hybrid)
    workplace.settings(ONE.replace("[connectors", f"{entry}[connectors"))
    assert "takes only the consumer's" in refusal(workplace, "orders")
    workplace.module(
        hybrid
        + "    def execute(self, consumer, producer):\n        return (consumer, producer)\n",
        "both",
    )
    workplace.settings(ONE.replace("[connectors", f"{entry}[connectors").replace("shop:", "both:"))
    wiring = workplace.wire("orders")
    assert not isinstance(wiring.task, type) or wiring.execute(wiring.task()) == (
        wiring.policies.main(wiring.kind),
        wiring.policies.producer,
    )


def test_an_execute_without_policy_takes_none(workplace: Workplace) -> None:
    """A policy for it would have no effect, so giving one is an error."""
    workplace.module(ORDERS + "    def execute(self):\n        return 'done'\n")
    workplace.settings(INBOX)
    wiring = workplace.wire()
    assert isinstance(wiring.task, type)
    assert wiring.execute(wiring.task()) == "done"
    with pytest.raises(WiringError, match=r"Orders\.execute takes none"):
        workplace.wire(overrides=Overrides(limit=1))


def test_a_hook_error_is_a_wiring_error(workplace: Workplace) -> None:
    """Programs may catch the one or the other."""
    workplace.module("class Orders(ConsumerTask):\n    pass")
    workplace.settings(INBOX)
    with pytest.raises(HookError):
        workplace.wire()
