from __future__ import annotations

import copy
import pickle
import re
from datetime import date
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from ergon_framework.app.providers import ProviderSettings, ProvidersSettings
from ergon_framework.app.settings import (
    ConnectorSettings,
    ServerSettings,
    ServiceSettings,
    Settings,
    StoreSettings,
    TaskSettings,
    TelemetrySection,
    load_settings,
    loader,
    policy_from_env,
    policy_from_toml,
    register_section,
    revealed,
)
from ergon_framework.app.settings.secrets import MAX_SECRET
from ergon_framework.app.webhooks import WebhookSettings
from ergon_framework.errors import SettingsError, WiringError
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy, RetryPolicy

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
TASK = '[tasks.orders]\ntask = "shop:Orders"\n'


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has a working directory and a registry of sections of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loader, "registered_sections", {})
    return tmp_path


def load(text: str = "", **environ: str) -> Settings:
    """Settings from a file with this text and an environment of these variables."""
    Path("ergon.toml").write_text(text)
    return load_settings(environ=environ)


def refusal(text: str = "", **environ: str) -> str:
    """What the loader says when it refuses them."""
    with pytest.raises(SettingsError) as caught:
        load(text, **environ)
    assert caught.value.remedy
    return str(caught.value)


# ---- finding and reading the file ---------------------------------------------------------------


def test_nothing_is_needed() -> None:
    """Without a file and without variables every default holds."""
    assert load_settings(environ={}) == Settings()


def test_the_file_is_found_by_argument_variable_or_place(directory: Path) -> None:
    """An argument goes before ERGON_CONFIG, and that before the working directory."""
    for port, name in enumerate(("ergon.toml", "b.toml", "c.toml")):
        (directory / name).write_text(f"[server]\nport = {port}\n")
    assert load_settings(environ={}).server.port == 0
    assert load_settings(environ={"ERGON_CONFIG": "b.toml"}).server.port == 1
    assert load_settings("c.toml", {"ERGON_CONFIG": "b.toml"}).server.port == 2
    assert load_settings(Path("c.toml"), {}).file == Path("c.toml")


def test_a_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping the real environment counts."""
    monkeypatch.setenv("ERGON_SERVER__PORT", "81")
    monkeypatch.setenv("RETRY_MAX_ATTEMPTS", "7")
    assert load_settings().server.port == 81
    assert policy_from_env(RetryPolicy, "RETRY_").max_attempts == 7


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "x.toml: there is no such file"),
        (b"[store]\nurl = \n", "x.toml:2: not TOML: Invalid value"),
        (b"a = 1\na = 2\n", "x.toml:2: not TOML: Cannot overwrite a value"),
        (b"a = [", "x.toml: not TOML: "),
        (b"[store]\n\nurl = '\xff'\n", "x.toml:3: not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(content: bytes | None, told: str) -> None:
    """A missing file, wrong bytes and wrong syntax are told with file and line."""
    if content is not None:
        Path("x.toml").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load_settings("x.toml", {})
    assert told in str(caught.value)
    assert caught.value.remedy


def test_a_directory_is_no_file(directory: Path) -> None:
    """A path that cannot be opened is a settings error too."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(directory, {})


def test_line_ends_and_marks_of_other_systems_do_not_matter() -> None:
    """A byte order mark and carriage returns shift no line."""
    Path("ergon.toml").write_bytes(b"\xef\xbb\xbf[server]\r\n\r\nport = -1\r\n")
    with pytest.raises(SettingsError, match=r":3: server\.port"):
        load_settings(environ={})


# ---- sections -----------------------------------------------------------------------------------


def test_a_task_has_its_policies_and_its_parts() -> None:
    """What the file says arrives checked and typed."""
    task = load(
        TASK
        + 'connectors = ["in"]\nservices = ["db"]\nworkers = 3\nproducer.loop.limit = 7\n'
        + "[tasks.orders.consumer.loop]\nbatch = { size = 9 }\n"
        + '[connectors.in]\ntype = "memory"\n[services.db]\nfactory = "shop.db:connect"\n'
    ).tasks["orders"]
    assert (task.task, task.connectors, task.services, task.workers) == (
        "shop:Orders",
        ("in",),
        ("db",),
        3,
    )
    assert task.consumer == ConsumerPolicy.model_validate({"loop": {"batch": {"size": 9}}})
    assert task.producer == ProducerPolicy.model_validate({"loop": {"limit": 7}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tasks.orders]\n", ":1: tasks.orders.task: task is missing"),
        ("[tasks]\norders = 5\n", ":2: tasks.orders: must be a table"),
        ("tasks = 5\n", ":1: tasks: must be a table"),
        ('[tasks."a b"]\ntask = "m:C"\n', ":1: tasks.a b: must be a name of letters, digits"),
        ('[tasks.t]\ntask = "shop.Orders"\n', ":2: tasks.t.task: task must be written module:"),
        (
            TASK + "workers = 2000\n",
            ":3: tasks.orders.workers: workers must be at most 1024, not 2000",
        ),
        (
            '[executors.python]\ncommand = ["x"]\npool_size = 2000\n',
            ":3: executors.python.pool_size: pool_size must be at most 1024, not 2000",
        ),
        (TASK + "workers = 0\n", ":3: tasks.orders.workers: workers must be at least 1, not 0"),
        (TASK + "limit = 5\n", "did you mean 'consumer.loop.limit' or 'producer.loop.limit'?"),
        (TASK + "connectors = 5\n", "connectors must be a list"),
        (
            TASK + "[tasks.orders.consumer]\nsteps.fetch.retry.timeout = 0\n",
            ":4: tasks.orders.consumer.steps.fetch.retry.timeout: timeout must be greater",
        ),
        ('[connectors.x]\ntype = "No Such"\n', "type must be written module:name"),
        ("[connectors.x]\n", "connectors.x.type: type is missing"),
        ("[services.x]\nfactory = 5\n", "factory must be text, not 5"),
        ("telemetry = 3\n", "telemetry: must be a table"),
        ("[telemetry]\nspan = true\n", "unknown key 'span' in [telemetry]; did you mean 'spans'"),
        ('[telemetry]\nrotate = "often"\n', "rotate must be 'never', 'batch' or seconds above 0"),
        ("[telemetry]\nrotate = 0\n", "rotate must be"),
        ("[telemetry]\nrotate = true\n", "rotate must be"),
        ("[server]\nport = 65536\n", "port must be at most 65535, not 65536"),
        ("[task.orders]\n", ":1: task: unknown section 'task'; did you mean 'tasks'?"),
        ("[zzz]\n", "known are boundary, connectors, executors"),
        (
            "\n[provider]\n",
            ":2: provider: unknown section 'provider'; did you mean 'providers'",
        ),
        (
            TASK + 'connectors = ["in", "inbx"]\n[connectors.inbox]\ntype="memory"\n'
            '[connectors.in]\ntype="memory"\n',
            ":3: tasks.orders.connectors.1: there is no connector 'inbx'; did you mean 'inbox'",
        ),
        (TASK + 'services = ["db"]\n', "there is no service 'db'; none is defined"),
        (
            TASK + 'consumer.steps.fetch.connector_name = "a"\n',
            "connector_name: 'a' is no connector of this task",
        ),
    ],
)
def test_a_mistake_has_its_line_its_key_and_its_cure(text: str, told: str) -> None:
    """Each mistake is told with the file, the line, the key and what is allowed."""
    message = refusal(text)
    assert message.startswith("ergon.toml:")
    assert told in message


def test_all_mistakes_are_told_together() -> None:
    """One error lists them all, for people and for programs."""
    with pytest.raises(SettingsError) as caught:
        load("[stor]\n[server]\nport = -1\nhots = 1\n", ERGON_TELEMETRY__SPANS="x")
    assert "4 mistakes" in str(caught.value)
    assert [mistake["where"] for mistake in caught.value.to_dict()["details"]["mistakes"]] == [
        "ergon.toml:1",
        "ergon.toml:3",
        "ergon.toml:4",
        "environment variable ERGON_TELEMETRY__SPANS",
    ]


def test_telemetry_rotates_by_word_or_by_seconds() -> None:
    """The three ways of rotation are accepted, from the file and from a variable."""
    assert load('[telemetry]\nrotate = "batch"\n').telemetry.rotate == "batch"
    assert load("[telemetry]\nrotate = 5\n").telemetry.rotate == 5.0
    assert load(ERGON_TELEMETRY__ROTATE="60").telemetry.rotate == 60.0


def test_settings_cannot_be_changed() -> None:
    """Neither a field, nor a table, nor an option can be set later."""
    found = load(TASK + '[connectors.c]\ntype = "memory"\nkeys = ["a"]\n')
    with pytest.raises(ValidationError):
        found.server = ServerSettings()
    with pytest.raises(TypeError, match="cannot be changed"):
        found.tasks["new"] = found.tasks["orders"]  # type: ignore[index]
    with pytest.raises(TypeError, match="cannot be changed"):
        found.connectors["c"].options["keys"].append("b")


def test_settings_reach_worker_processes() -> None:
    """Pickled, copied and made again from a dump they are equal."""
    found = load(TASK + '[connectors.c]\ntype = "memory"\npassword = "env:PW"\n', PW="hunter2")
    assert pickle.loads(pickle.dumps(found)) == found == copy.deepcopy(found)  # noqa: S301
    assert Settings.model_validate(found.model_dump()) == found


# ---- sections of other parts --------------------------------------------------------------------


class JobsSettings(BaseModel, extra="forbid"):
    timeout: float = 60.0
    password: SecretStr | None = None


def test_another_part_brings_its_section() -> None:
    """A registered section is checked by its model, with lines, variables and secrets."""
    register_section("shop", JobsSettings, has_secrets=True)
    register_section("stands", dict[str, JobsSettings])
    text = '[shop]\npassword = "env:PW"\n[stands.a]\ntimeout = 1\n'
    found = load(text, PW="hunter2", ERGON_SHOP__TIMEOUT="5").extensions
    assert found["shop"] == JobsSettings(timeout=5.0, password=SecretStr("hunter2"))
    assert found["stands"] == {"a": JobsSettings(timeout=1.0)}
    assert ":2: stands.a.time" in refusal("[stands.a]\ntime = 1\n")


@pytest.mark.parametrize("name", ["tasks", "shop"])
def test_a_section_has_one_owner(name: str) -> None:
    """Registering a section twice, or one of our own, is refused."""
    register_section("shop", JobsSettings)
    with pytest.raises(WiringError, match=name):
        register_section(name, JobsSettings)


# ---- environment variables ----------------------------------------------------------------------


def test_a_variable_overrides_the_file() -> None:
    """The variable's text becomes what the key's type says."""
    text = TASK + "[tasks.orders.consumer.loop]\nlimit = 5\nstreaming = true\n"
    loop = {"ERGON_TASKS__ORDERS__CONSUMER__LOOP__LIMIT": "10"}
    consumer = load(text, **loop).tasks["orders"].consumer
    assert consumer is not None
    assert (consumer.loop.limit, consumer.loop.streaming) == (10, True)


def test_names_in_variables_have_no_case_and_no_hyphens() -> None:
    """They match the keys of the file as those are written."""
    text = '[tasks.New-Orders]\ntask = "m:C"\n[connectors.C]\ntype = "memory"\nmaxSize = 5\n'
    found = load(text, ERGON_TASKS__NEW_ORDERS__WORKERS="4", ergon_connectors__c__MAXSIZE="6")
    assert found.tasks["New-Orders"].workers == 4
    assert found.connectors["C"].options == {"maxSize": 6}


def test_variables_alone_can_define_things() -> None:
    """Without a file, names are taken in lower case."""
    found = load_settings(
        environ={
            "ERGON_TASKS__ORDERS__TASK": "m:C",
            "ERGON_TASKS__ORDERS__CONNECTORS": "a, b",
            "ERGON_TASKS__ORDERS__PRODUCER": "none",
            "ERGON_CONNECTORS": "not a setting: no two underscores in it",
            "ERGON_CONNECTORS__A__TYPE": "memory",
            "ERGON_CONNECTORS__B": '{"type": "jsonl", "paths": ["x"]}',
        }
    )
    assert found.tasks["orders"].connectors == ("a", "b")
    assert found.connectors["a"].type == "memory"
    assert revealed(found.connectors["b"].options) == {"paths": ["x"]}


def test_the_more_specific_variable_has_the_last_word() -> None:
    """A table given as JSON replaces the file's; a key in it is set after that."""
    text = TASK + "[tasks.orders.consumer.loop]\nlimit = 5\nstreaming = true\n"
    consumer = (
        load(
            text,
            ERGON_TASKS__ORDERS__CONSUMER__LOOP='{"batch": {"size": 3}}',
            ERGON_TASKS__ORDERS__CONSUMER__LOOP__LIMIT="1",
        )
        .tasks["orders"]
        .consumer
    )
    loop = {"batch": {"size": 3}, "limit": 1}
    assert consumer == ConsumerPolicy.model_validate({"loop": loop})


def test_options_are_read_like_the_files_values() -> None:
    """A number or switch in the file says how the variable's text is meant; else it stays text."""
    text = '[connectors.c]\ntype = "memory"\na = 1\nb = true\nd = 1.5\ne = "5"\n'
    names = {f"ERGON_CONNECTORS__C__{name}": "0" for name in "ABDEF"}
    options = revealed(load(text, **names).connectors["c"].options)
    assert options == {"a": 0, "b": False, "d": 0, "e": "0", "f": "0"}
    assert [type(value) for value in options.values()] == [int, bool, int, str, str]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("ERGON_STOR__URL", "x", "unknown section 'stor'; did you mean 'store'?"),
        ("ERGON__STORE__URL", "x", "unknown section '_store'; did you mean 'store'?"),
        ("ERGON_PROVIDERS__STOR", "x", "unknown key 'stor' in [providers]; did you mean 'store'"),
        ("ERGON_SERVER__PORT", "http", "server.port: port must be a whole number, not 'http'"),
        ("ERGON_SERVER__PROT", "80", "unknown key 'prot' in [server]; did you mean 'port'?"),
        ("ERGON_SERVER__", "80", "has an empty name in it"),
        ("ERGON_SERVER____PORT", "80", "has an empty name in it"),
        ("ERGON_TASKS__ORDERS__TASK__X", "1", "tasks.orders.task: is no table"),
        ("ERGON_TASKS__OTHER__WORKERS", "1", "tasks.other.task: task is missing"),
        ("ERGON_TASKS__ORDERS__CONSUMER", "{broken", "tasks.orders.consumer: must be a table"),
        ("ERGON_CONNECTORS__C__SIZE", "big", "connectors.c.size: must be a number or a switch"),
        ("ERGON_CONNECTORS__C__SIZE", "nan", "connectors.c.size: must be a number or a switch"),
        ("ERGON_CONNECTORS__C__LOUD", "very", "connectors.c.loud: must be a number or a switch"),
        ("ERGON_TASKS__ORDERS__CONNECTORS", "d", "there is no connector 'd'; did you mean"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, told: str) -> None:
    """A variable that leads nowhere or holds the wrong thing is an error that names it."""
    text = TASK + '[connectors.c]\ntype = "memory"\nsize = 5\nloud = true\n[connectors.dd]\n'
    message = refusal(text + 'type = "memory"\n', **{variable: value})
    assert f"environment variable {variable}: " in message
    assert told in message


def test_two_variables_for_one_key_are_refused() -> None:
    """Which of the two wins would be a matter of luck."""
    told = refusal(ERGON_SERVER__PORT="1", ergon_server__port="2")
    assert "ergon_server__port: server.port: is also set by ERGON_SERVER__PORT" in told


def test_a_variable_for_two_keys_is_refused() -> None:
    """Names that differ only in case cannot be told apart in a variable, except as written."""
    text = '[connectors.ab]\ntype = "memory"\n[connectors.AB]\ntype = "memory"\n'
    assert "'Ab' may mean 'ab' or 'AB'" in refusal(text, ERGON_CONNECTORS__Ab__TYPE="jsonl")
    found = load(text, ERGON_CONNECTORS__AB__TYPE="jsonl").connectors
    assert (found["ab"].type, found["AB"].type) == ("memory", "jsonl")


def test_other_variables_are_left_alone() -> None:
    """Reserved names, and what a container platform puts there, are no settings."""
    names = (
        "CONFIG",
        "LOG_LEVEL",
        "LIVENESS_FILE",
        "READY_FD",
        "MAX_IN_FLIGHT",
        "ROLE",
        "WORKER_ID",
    )
    environ = {f"ERGON_{name}": "" for name in names}
    environ |= {"ERGON_SERVER_PORT": "tcp://10.0.0.1:80", "OTHER__PORT": "x", "ERGON": "y"}
    assert load_settings(environ=environ) == Settings()


# ---- secrets ------------------------------------------------------------------------------------

SECRETS = """
[store]
url = "env:DB"
[connectors.c]
type = "memory"
token = "env:TOKEN"
plain = "text:env:TOKEN"
day = 2026-01-31
[connectors.c.deep]
keys = ["file:secrets/key", 5]
[services.s]
factory = "shop:connect"
password = "file:secrets/key"
"""


def test_secrets_are_found_and_kept_closed(directory: Path) -> None:
    """References are resolved at load, masked everywhere, and opened for what is built."""
    (directory / "secrets").mkdir()
    (directory / "secrets" / "key").write_text("hunter2\r\n")
    environ = {"TOKEN": "hunter2", "DB": "db://hunter2", "ERGON_CONNECTORS__C__MORE": "hunter2"}
    found = load(SECRETS, **environ)
    for text in (repr(found), str(found), str(found.model_dump()), found.model_dump_json()):
        assert "hunter2" not in text
    assert revealed(found.connectors["c"].options) == {
        "token": "hunter2",
        "plain": "env:TOKEN",
        "day": date(2026, 1, 31),
        "deep": {"keys": ["hunter2", 5]},
        "more": "hunter2",
    }
    assert revealed(found.services["s"].options) == {"password": "hunter2"}
    assert revealed(found.store.url) == "db://hunter2"


def test_a_file_is_sought_beside_the_settings(directory: Path) -> None:
    """A relative path belongs to the settings file; without one, to the working directory."""
    (directory / "etc").mkdir()
    (directory / "etc" / "key").write_text("a")
    (directory / "key").write_text("b")
    (directory / "etc" / "x.toml").write_text("[store]\nurl = 'file:key'\n")
    assert revealed(load_settings("etc/x.toml", {}).store.url) == "a"
    assert revealed(load_settings(environ={"ERGON_STORE__URL": "file:key"}).store.url) == "b"


def test_an_option_is_not_shown_even_when_it_is_no_secret() -> None:
    """A repr has the names of options only: a password may have been written plainly."""
    text = repr(load('[connectors.c]\ntype = "memory"\npassword = "hunter2"\n'))
    assert "ConnectorSettings(type='memory', options=['password'])" in text


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("env:NOPE", "the environment variable 'NOPE' is not set"),
        ("env:EMPTY", "refers to an empty secret"),
        ("file:nope", "cannot read 'nope': No such file"),
        ("file:.", "cannot read '.': Is a directory"),
        ("file:long", "the file 'long' is too long for a secret"),
        ("file:bytes", "cannot read 'bytes' as text"),
        ("file:empty", "refers to an empty secret"),
        ("file:a\\u0000b", "as text"),
    ],
)
def test_a_secret_that_cannot_be_had_is_a_mistake(reference: str, told: str) -> None:
    """It is told at load, with the line of the key."""
    Path("long").write_text("hunter2" * MAX_SECRET)
    Path("bytes").write_bytes(b"hunter2\xff")
    Path("empty").write_text("\n")
    text = f'[connectors.c]\ntype = "memory"\ntoken = "{reference}"\n'
    message = refusal(text, EMPTY="")
    assert "ergon.toml:3: connectors.c.token: " in message
    assert told in message
    assert "hunter2" not in message


def test_options_may_have_any_name() -> None:
    """An option is not confused with what the settings object offers itself."""
    text = '[connectors.c]\ntype = "memory"\noptions = 1\ncopy = 2\nmodel_extra = 3\nfields = 4\n'
    options = {"options": 1, "copy": 2, "model_extra": 3, "fields": 4}
    assert load(text).connectors["c"].options == options


# ---- one policy ---------------------------------------------------------------------------------


def test_a_policy_from_variables() -> None:
    """A prefix of the user's own, nesting, JSON, and words for nothing."""
    environ = {
        "ORDERS_LOOP__LIMIT": "10",
        "orders_loop__streaming": "yes",
        "ORDERS_LOOP__TIMEOUT": "none",
        "ORDERS_STEPS": '{"process": {"retry": {"max_attempts": 3}}}',
        "ORDERS_STEPS__FETCH__EXTRA__TOPIC": "x",
        "ORDERS_NAME": "nightly",
        "ORDERS_DB_URL": "not a policy's",
        "OTHER_LOOP__LIMIT": "1",
    }
    assert policy_from_env(ConsumerPolicy, "ORDERS_", environ) == ConsumerPolicy.model_validate(
        {
            "loop": {"limit": 10, "streaming": True},
            "steps": {
                "process": {"retry": {"max_attempts": 3}},
                "fetch": {"extra": {"topic": "x"}},
            },
            "name": "nightly",
        }
    )


@pytest.mark.parametrize(
    ("model", "variable", "value", "told"),
    [
        (ConsumerPolicy, "P_LOOP__LIMT", "1", "loop.limt: unknown key 'limt'"),
        (ConsumerPolicy, "P_LOP__LIMIT", "1", "lop: unknown key 'lop' in ConsumerPolicy"),
        (ConsumerPolicy, "P_LOOP__LIMIT", "-1", "limit must be at least 0, not '-1'"),
        (RetryPolicy, "P_MAX_ATTEMPS", "1", "did you mean 'max_attempts'?"),
        (RetryPolicy, "P_TIMEOUT", "0", "timeout must be greater than 0"),
    ],
)
def test_a_wrong_policy_variable_is_named(
    model: type[BaseModel], variable: str, value: str, told: str
) -> None:
    """The error names the variable, also when it nearly is a key."""
    with pytest.raises(SettingsError) as caught:
        policy_from_env(model, "P_", {variable: value})
    assert f"environment variable {variable}: " in str(caught.value)
    assert told in str(caught.value)


def test_a_prefix_is_needed() -> None:
    """The whole environment is not a policy."""
    with pytest.raises(SettingsError, match="prefix"):
        policy_from_env(RetryPolicy, "", {})


def test_a_policy_from_a_table() -> None:
    """Any table of any TOML file will do, or the whole file."""
    Path("x.toml").write_text("max_attempts = 2\n[a.b]\nmax_attempts = 3\n")
    assert policy_from_toml(RetryPolicy, "x.toml", "a.b").max_attempts == 3
    Path("y.toml").write_text("max_attempts = 2\n")
    assert policy_from_toml(RetryPolicy, "y.toml").max_attempts == 2


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("a.c", "a.c: there is no such table; known are b"),
        ("aa", "aa: there is no such table; did you mean 'a'?"),
        ("a.b.c.d", "a.b.c.d: there is no such table; none is defined"),
        ("a.b", "x.toml:2: a.b.c: unknown key 'c' in [a.b]"),
    ],
)
def test_a_wrong_table_is_named(table: str, told: str) -> None:
    """A table that is not there, or does not fit, is told with file and line."""
    Path("x.toml").write_text("[a.b]\nc = 3\n")
    with pytest.raises(SettingsError) as caught:
        policy_from_toml(RetryPolicy, "x.toml", table)
    assert told in str(caught.value)


# ---- the page -----------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    """The code blocks of the reference page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_examples_of_the_page_work(directory: Path) -> None:
    """The file of the page loads, its mistakes read as shown, and its Python runs."""
    (directory / "secrets").mkdir()
    (directory / "secrets" / "ledger").write_text("x")
    text, policies, providers, script, jobs, zones = blocks("toml")
    environ = {"OUTBOX_TOKEN": "x"}
    found = load(text, **environ)
    careful = load(policies).tasks["orders"].consumer
    assert careful is not None
    assert (careful.loop.batch.size, careful.steps.process.retry.max_attempts) == (10, 3)
    assert load(providers, MAIL_KEY="x").extensions["providers"].named["mail"].timeout_budget == 20
    rates = load(script).extensions["providers"].named["rates"]
    assert (rates.provider, rates.quota.limit, rates.retry.max_attempts) == (None, 1000, 5)
    assert {"executors", "jobs"} <= load(jobs).extensions.keys()
    assert {"boundary", "zones"} <= load(zones).extensions.keys()
    assert found.tasks["orders"].workers == 2
    wrong = text.replace("batch.size", "batch.sise")
    told = refusal(wrong, **environ, ERGON_SERVER__PORT="99999")
    assert blocks("text")[0] in told
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), {})  # noqa: S102 - our own page


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("[store]", StoreSettings),
        ("[tasks.NAME]", TaskSettings),
        ("[connectors.NAME]", ConnectorSettings),
        ("[services.NAME]", ServiceSettings),
        ("[providers]", ProvidersSettings),
        ("[providers.NAME]", ProviderSettings),
        ("[telemetry]", TelemetrySection),
        ("[server]", ServerSettings),
        ("[webhooks.NAME]", WebhookSettings),
    ],
)
def test_the_page_has_every_key_and_its_default(heading: str, model: type[BaseModel]) -> None:
    """The reference lists exactly the keys there are, in order, with their defaults."""
    section = PAGE.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    shown = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    assert shown == [
        (name, "required" if field.is_required() else str(field.default))
        for name, field in model.model_fields.items()
    ]


def test_a_collector_takes_no_password_in_its_url(tmp_path: Path) -> None:
    """Executors are told the URL, and nobody masks it; headers have a variable of their own."""
    file = tmp_path / "ergon.toml"
    file.write_text('[telemetry]\notlp = "http://me:hunter2@127.0.0.1:4318"\n')
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
        load_settings(file, {})
    assert "hunter2" not in str(caught.value)


def test_the_variables_of_an_executor_are_in_no_repr(tmp_path: Path) -> None:
    """They may be secrets of the program."""
    file = tmp_path / "ergon.toml"
    file.write_text('[executors.node]\ncommand = ["node"]\nenv = { API_TOKEN = "hunter2" }\n')
    settings = load_settings(file, {})
    assert settings.extensions["executors"]["node"].env == {"API_TOKEN": "hunter2"}
    assert "hunter2" not in repr(settings)
