"""``ergon check`` on settings that are in order, or wrong in ways that only some machines show."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.cli import invoke
from ergon_framework.errors import SettingsError
from tests.app.processes import SAMPLES, SOURCE
from tests.app.workplace import Workplace, workplace_in

pytestmark = pytest.mark.req("ONE:check")

SECRETS = {"MAIL_PASSWORD": "hunter2", "TOKEN": "hunter2"}
ORDERS = """
[tasks.orders]
task = "counter:Orders"
connectors = ["inbox"]
services = ["mail", "mailer"]
policy = "careful"

[policies.careful]
loop.limit = 10

[connectors.inbox]
type = "memory"

[services.mailer]
factory = "counter:mailer"
host = "mail.example.org"
password = "env:MAIL_PASSWORD"

[providers.mail]
provider = "counter:Mail"
key = "file:key.txt"
"""


@pytest.fixture(autouse=True)
def in_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Where the modules are that the files name."""
    with workplace_in(SAMPLES, monkeypatch) as place:
        yield place


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file that is in order, with its secrets."""
    (tmp_path / "key.txt").write_text("hunter2\n")
    path = tmp_path / "ergon.toml"
    path.write_text(ORDERS)
    return path


def refusal(file: Path, text: str, **environ: str) -> list[str]:
    """Every mistake in settings with this text, without the file's name."""
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        check(file, environ)
    assert "hunter2" not in str(caught.value)
    mistakes = caught.value.details["mistakes"]
    return [f"{each['line']}: {each['key']}: {each['problem']}" for each in mistakes]


@pytest.mark.req("ONE:secrets")
def test_what_would_run_is_printed(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each part, no secret, and nothing is stored, made or connected."""
    monkeypatch.setenv("MAIL_PASSWORD", "hunter2")
    file.write_text(ORDERS + '[store]\nurl = "sqlite:///work.db"\n')
    assert invoke(["check", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        ["kind", "name", "what", "where", "processes"],
        ["task", "orders", "counter:Orders", "inbox", "(memory)", "1"],
        ["provider", "mail", "counter:Mail", "sqlite:///work.db"],
    ]
    assert invoke(["check", "--config", str(file), "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)[0] == {
        "kind": "task",
        "name": "orders",
        "what": "counter:Orders",
        "where": "inbox (memory)",
        "processes": 1,
    }
    assert "hunter2" not in shown + told
    assert sorted(path.name for path in file.parent.iterdir()) == ["ergon.toml", "key.txt"]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_file_that_describes_nothing(
    file: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in order, and it is said that nothing would run."""
    file.write_text("[telemetry]\nspans = true\n")
    assert invoke(["check", "--config", str(file), *words]) == 0
    captured = capsys.readouterr()
    assert f"note: {file} describes nothing to run: no task" in captured.err
    if words:
        assert json.loads(captured.out) == []


@pytest.mark.parametrize(
    ("body", "is_refused"),
    [
        ("super().__init__(**more)", True),
        ("self.more = more\n        super().__init__()", False),
        ("more.pop('region', None)\n        super().__init__(**more)", False),
    ],
)
def test_options_that_a_provider_only_hands_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, *, is_refused: bool
) -> None:
    """Are those of every provider; a class that looks at them itself may take any."""
    with workplace_in(tmp_path, monkeypatch) as place:
        code = "from ergon_framework.providers.base import ProviderBase\n"
        code += "class Crm(ProviderBase):\n    provider_name, capability = 'crm', 'read'\n"
        code += f"    def __init__(self, key='', **more):\n        {body}\n"
        place.module(code)
        text = '[providers.crm]\nprovider = "shop:Crm"\nkey = "k"\ndurable = true\n'
        file = tmp_path / "ergon.toml"
        file.write_text(text)
        assert [row.name for row in check(file, {})] == ["crm"]
        file.write_text(text + 'region = "eu"\n')
        if is_refused:
            assert "unknown option 'region'" in refusal(file, file.read_text())[0]
        else:
            assert [row.name for row in check(file, {})] == ["crm"]


def test_what_user_code_prints_stays_out_of_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads the output reads only ours."""
    with workplace_in(tmp_path, monkeypatch) as place:
        place.module("print('hello')\nclass Plain(BaseTask):\n    def execute(self): ...\n")
        place.settings('[tasks.plain]\ntask = "shop:Plain"\n')
        assert invoke(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "plain"


def test_no_settings_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to be wrong."""
    monkeypatch.chdir(tmp_path)
    assert check(environ={}) == []


def test_a_mistake_in_one_part_does_not_hide_those_in_others(file: Path) -> None:
    """What is wrong is left out, and the rest is looked at all the same."""
    told = refusal(
        file,
        ORDERS
        + '[tasks.other]\ntask = "counter:Nobody"\n[tasks.third]\ntask = 3\n[store]\nulr = "x"\n',
        **SECRETS,
    )
    assert [line.partition(": ")[2].partition(":")[0] for line in told] == [
        "tasks.other.task",
        "tasks.third.task",
        "store.ulr",
    ]


def test_a_secret_in_an_error_of_user_code_is_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a module says when it cannot be imported."""
    with workplace_in(tmp_path, monkeypatch) as place:
        place.module("import os\nraise ValueError('no ' + os.environ['TOKEN'])\n")
        monkeypatch.setenv("TOKEN", "hunter2")
        text = '[services.s]\nfactory = "shop:make"\ntoken = "env:TOKEN"\n'
        told = refusal(tmp_path / "ergon.toml", text, **SECRETS)
    assert "ValueError: no ***" in told[0]


@pytest.mark.req("ONE:secrets")
@pytest.mark.parametrize(
    "url",
    [
        "postgres//me:hunter2@host/db",
        "mysql://me:hunter2@host/db",
        "sqlite://me:hunter2@host/db",
        "hunter2",
        "postgresql+other://me:hunter2@host/db",
    ],
)
def test_a_wrong_url_is_not_repeated(file: Path, url: str) -> None:
    """It may hold a password, wherever it came from."""
    parts = '[providers.mail]\nprovider = "counter:Mail"\n[jobs]\nmax_attempts = 3\n'
    for text, environ in (
        (f'[store]\nurl = "{url}"\n', {}),
        ('[store]\nurl = "env:STORE"\n', {"STORE": url}),
        ("", {"ERGON_STORE__URL": url}),
    ):
        (told,) = refusal(file, text + parts, **environ)
        assert ": store.url: " in told


def test_two_tasks_with_one_name(file: Path) -> None:
    """One variable would mean both."""
    text = '[tasks.a-b]\ntask = "counter:Orders"\n[tasks.a_b]\ntask = "counter:Orders"\n'
    assert any(
        "two tasks in the settings have the same name" in each for each in refusal(file, text)
    )


def test_an_archive_in_parquet_without_its_library(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would not start; so it is a mistake here as well."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    table = '[store]\nurl = "sqlite:///work.db"\n[jobs.archive]\nfolder = "a"\nformat = "parquet"\n'
    (found,) = refusal(file, table)
    assert "jobs.archive.format" in found
    assert "needs pyarrow" in found


def test_jobs_without_a_store_or_a_worker(file: Path) -> None:
    """A worker needs a store that outlives it; schedules need a worker."""
    executor = f'[executors.python]\ncommand = ["{sys.executable}"]\n'
    assert refusal(file, executor) == ["1: executors: there is no store for the jobs"]
    (told,) = refusal(file, executor + '[store]\nurl = "memory://"\n')
    assert told.startswith("4: store.url: a job store in memory ends with this command")
    schedule = '[schedules.r]\nevery = 60\nhandler = "r"\n'
    (told,) = refusal(file, schedule)
    assert told == "1: schedules: schedules need a worker, and there is no executor for one"
    store = '[store]\nurl = "sqlite:///work.db"\n'
    elsewhere = schedule.replace('"r"', '"pyhton#r"')
    (told,) = refusal(file, store + executor + elsewhere)
    assert told.startswith("7: schedules.r.handler: there is no executor 'pyhton'")
    assert "python" in told.split("pyhton")[1]
    two = executor + executor.replace("python]", "other]")
    assert refusal(file, store + two) == [
        "3: executors: there are several executors and no default"
    ]


ENDS_ITSELF = """
import os, sys
print("no such region", file=sys.stderr, flush=True)
os._exit(7)
"""
PROVIDER = """
from ergon_framework.executor import Registry
from ergon_framework.providers.base import ProviderBase

registry = Registry()

class Crm(ProviderBase):
    provider_name, capability = "crm", "read"

    def _execute_impl(self, *args, **options):
        return {}
"""


@pytest.mark.slow
def test_a_provider_of_an_executor_alone_is_looked_for_in_its_folder(file: Path) -> None:
    """As the executor finds it; one that a task uses has to be found by the task."""
    folder = file.parent / "sub"
    folder.mkdir()
    (folder / "own_handlers.py").write_text(PROVIDER)
    command = [sys.executable, "-m", "ergon_framework.executor", "--app", "own_handlers:registry"]
    text = (
        '[store]\nurl = "sqlite:///work.db"\n[executors.python]\ncwd = "sub"\n'
        f'command = {json.dumps(command)}\n[providers.crm]\nprovider = "own_handlers:Crm"\n'
    )
    file.write_text(text)
    assert [row.kind for row in check(file, _environ())] == ["worker", "executor", "provider"]
    (told,) = refusal(file, text.replace(":Crm", ":Cmr"), **_environ())
    assert told == "6: providers.crm: there is no module 'own_handlers'"
    used = '[tasks.orders]\ntask = "counter:Orders"\nservices = ["crm"]\n'
    assert refusal(file, text + used, **_environ())[0] == told


@pytest.mark.slow
def test_the_handlers_of_an_executor_are_looked_for(file: Path) -> None:
    """By its own Python, in its own folder; another program is left alone."""
    text = (
        '[store]\nurl = "sqlite:///work.db"\n[executors.python]\n'
        f'cwd = "{SAMPLES}"\ncommand = ["{sys.executable}", "-m", "ergon_framework.executor",'
        ' "--app", "parts:registry"]\n'
    )
    file.write_text(text)
    assert [row.kind for row in check(file, _environ())] == ["worker", "executor"]
    wrong = text.replace("parts:registry", "parts:registri")
    (told,) = refusal(file, wrong, **_environ())
    assert told == "5: executors.python.command: 'parts:registri': there is no 'registri'"
    (told,) = refusal(file, text.replace("parts:registry", "shop:Orders"), **_environ())
    assert told == "5: executors.python.command: 'shop:Orders' is a type"
    (file.parent / "broken.py").write_text(ENDS_ITSELF)
    broken = text.replace("parts:registry", "broken:registry").replace(str(SAMPLES), ".")
    (told,) = refusal(file, broken, **_environ())
    assert told.endswith(
        f"'broken:registry' cannot be imported by {sys.executable}: no such region"
    )
    file.write_text(text.replace("ergon_framework.executor", "json.tool"))
    assert check(file, _environ())


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


def test_certificates_are_read(file: Path) -> None:
    """They must fit together, and be those of the zone."""
    certs = file.parent / "certs"
    make_ca(certs)
    issue(certs, "plant")
    zone = (
        '[zones.plant]\ndata = "plant"\ncert = "certs/plant.pem"\nkey = "certs/plant.key"\n'
        'ca = "certs/ca.pem"\n'
    )
    file.write_text(zone)
    assert [row.where for row in check(file, {})] == ["127.0.0.1:9443"]
    (told,) = refusal(file, zone.replace("zones.plant", "zones.office"))
    assert told == "1: zones.office: the certificate is that of zone 'plant'"
    (told,) = refusal(file, zone.replace('plant.key"', 'ca.key"'))
    assert told.startswith("1: zones.plant: ")
    (told,) = refusal(file, zone.replace("certs/ca.pem", "certs/of-nobody.pem"))
    assert told == "5: zones.plant.ca: there is no file 'certs/of-nobody.pem'"
    (told,) = refusal(file, zone.replace("certs/ca.pem", "/etc/of-nobody.pem"))
    assert told == "5: zones.plant.ca: there is no file '/etc/of-nobody.pem'", "as it was written"


def test_a_zone_that_could_not_listen(file: Path) -> None:
    """Plain HTTP has to be asked for, on an address that stays on this machine."""
    zone = '[zones.plant]\ndata = "plant"\n'
    (told,) = refusal(file, zone)
    assert told.startswith("1: zones.plant.listen: there are no certificates for listening on")
    (told,) = refusal(file, zone + 'listen = "here"\ninsecure = true\n')
    assert told == "3: zones.plant.listen: 'here' is no address to listen on"
    (told,) = refusal(file, zone + 'insecure = true\nhealth_listen = "here"\n')
    assert told == "4: zones.plant.health_listen: 'here' is no address to listen on"
    (told,) = refusal(file, zone + 'insecure = true\nhealth_listen = "0.0.0.0:9443"\n')
    assert told == "4: zones.plant.health_listen: the zone 'plant' listens on port 9443"
    (told,) = refusal(file, '[boundary]\nhealth_listen = "0.0.0.0:9444"\n')
    assert "health_listen belongs to one zone" in told
    (told,) = refusal(file, zone + 'insecure = true\npolicy = "ergon.toml"\n')
    assert told.startswith("4: zones.plant.policy: ")
    (told,) = refusal(file, zone + 'insecure = true\npeers = { plant = "http://127.0.0.1:1" }\n')
    assert told == "4: zones.plant.peers.plant: zone 'plant' cannot be its own peer"


def test_a_zone_elsewhere_is_only_an_address(file: Path) -> None:
    """Without data nothing is kept here, so nothing is needed for it."""
    file.write_text('[zones.office]\nlisten = "127.0.0.1:9442"\n')
    assert check(file, {}) == []


def test_a_token_opens_the_server_to_others(file: Path) -> None:
    """From the settings, or from the variable that the server looks at."""
    file.write_text('[server]\nhost = "0.0.0.0"\ntoken = "env:T"\n')
    assert [row.where for row in check(file, {"T": "hunter2" * 3})] == ["http://0.0.0.0:8400"]
    file.write_text('[server]\nhost = "0.0.0.0"\n')
    assert check(file, {"ERGON_SERVER_TOKEN": "hunter2" * 3})
    with pytest.raises(SettingsError, match="ERGON_SERVER_TOKEN is shorter") as caught:
        check(file, {"ERGON_SERVER_TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("missing", "text", "remedy"),
    [
        ("fastapi", "[server]\nport = 8080\n", "ergon-framework[api]"),
        ("uvicorn", "[server]\nport = 8080\n", "ergon-framework[api]"),
        ("psycopg", '[store]\nurl = "postgresql://host/db"\n{jobs}', "ergon-framework[postgres]"),
        ("redis", '[store]\nurl = "redis://host/0"\n{jobs}', "ergon-framework[redis]"),
        ("prometheus_client", "[telemetry]\nprometheus_port = 9464\n", "[prometheus]"),
        (
            "opentelemetry.exporter.otlp.proto.http.trace_exporter",
            '[telemetry]\notlp = "http://127.0.0.1:4318"\n',
            "[otel]",
        ),
    ],
)
def test_a_package_that_a_run_would_miss(
    file: Path, monkeypatch: pytest.MonkeyPatch, missing: str, text: str, remedy: str
) -> None:
    """``ergon run --all`` would fail for want of it: so does the check, with what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    jobs = '[executors.python]\ncommand = ["true"]\n'
    file.write_text(text.format(jobs=jobs))
    with pytest.raises(SettingsError) as caught:
        check(file, {})
    assert remedy in str(caught.value)


def test_a_link_to_no_settings_is_a_mistake(
    in_samples: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the same as no file: somebody meant one."""
    monkeypatch.chdir(tmp_path)
    Path("ergon.toml").symlink_to("elsewhere.toml")
    with pytest.raises(SettingsError, match=r"ergon\.toml: there is no such file"):
        check(environ={})
