"""The wheel as a stranger gets it: installed without extras into an environment of its own.

The one test that needs a package index. Where none answers it is skipped, with its reason in the
report; with ``CI=true`` that is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:wheel"), pytest.mark.timeout(300)]

EXTRA_OF = {
    "aio_pika": "rabbitmq",
    "aiobotocore": "sqs",
    "asgiref": "django",
    "boto3": "sqs",
    "celery": "celery",
    "click": "flask",
    "confluent_kafka": "kafka",
    "django": "django",
    "fastapi": "api",
    "flask": "flask",
    "h11": "api",
    "httpx": "httpx",
    "jinja2": "api",
    "kombu": "celery",
    "nats": "nats",
    "obstore": "s3",
    "opentelemetry.exporter": "otel",
    "opentelemetry.sdk": "otel",
    "paho": "mqtt",
    "pika": "rabbitmq",
    "prometheus_client": "prometheus",
    "psycopg": "postgres",
    "pyarrow": "parquet",
    "redis": "redis",
    "sentry_sdk": "sentry",
    "starlette": "api",
    "structlog": "structlog",
    "uvicorn": "api",
}
"""Packages that only an extra brings, and which."""
NEVER = (*EXTRA_OF, "aiohttp", "hypothesis", "mkdocs", "pytest", "requests", "tenacity")
"""What must not be importable beside a wheel without extras."""
PUBLIC = (
    "ergon_framework",
    "ergon_framework.app.providers",
    "ergon_framework.app.settings",
    "ergon_framework.boundary",
    "ergon_framework.cli.commands",
    "ergon_framework.connector.jsonl",
    "ergon_framework.connector.memory",
    "ergon_framework.executor",
    "ergon_framework.jobs",
    "ergon_framework.providers.api",
    "ergon_framework.providers.base",
    "ergon_framework.providers.synthetic",
    "ergon_framework.task.ready",
    "ergon_framework.telemetry",
    "ergon_framework.testing",
    "ergon_framework.web",
)
"""What every user may import, whatever is installed."""
_IMPORT_EACH = """
import importlib, json, sys
failed = {}
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except ImportError as error:
        cause = error
        while not getattr(cause, "name", None) and cause.__cause__ is not None:
            cause = cause.__cause__
        failed[name] = [str(getattr(cause, "name", None)), str(error)]
print(json.dumps(failed))
"""
_FIND_EACH = """
import importlib.util, json, sys
def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps([name for name in sys.stdin.read().split() if is_there(name)]))
"""


@dataclass(frozen=True)
class Place:
    """An environment with the wheel in it."""

    wheel: Path
    environment: Path
    scratch: Path

    def run(self, program: str, *words: str, given: str = "", **more: str) -> tuple[int, str, str]:
        """Run a program of the environment in the scratch folder: exit code, output, errors."""
        cwd = more.pop("cwd", str(self.scratch))
        return _run(self.environment / "bin" / program, *words, given=given, cwd=cwd, **more)

    def answer(self, code: str, given: str = "") -> str:
        """What a Python program prints that must succeed."""
        status, out, errors = self.run("python", "-c", code, given=given)
        assert status == 0, errors
        return out


def _run(
    program: Path | str, *words: str, given: str = "", cwd: str = "", **more: str
) -> tuple[int, str, str]:
    # Nothing of this process may show the other one the source tree.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    kept = {key: value for key, value in kept.items() if not key.startswith(("COV", "ERGON_"))}
    done = subprocess.run(  # noqa: S603 - our own programs
        [str(program), *words],
        input=given,
        cwd=cwd or None,
        env={**kept, **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without an index."""
    folder = tmp_path_factory.mktemp("dist")
    build = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    status, out, errors = _run(sys.executable, *build, cwd=str(ROOT))
    assert status == 0, out + errors
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A fresh environment with the wheel, as pinned, and without extras."""
    home = tmp_path_factory.mktemp("stranger")
    environment, scratch = home / "venv", home / "scratch"
    scratch.mkdir()
    assert _run(sys.executable, "-m", "venv", "--without-pip", str(environment))[0] == 0
    pins = ("--quiet", "--constraint", str(ROOT / "constraints.txt"))
    status, _, errors = _install(environment, *pins, "cronsim")
    if status != 0:
        _no_index(errors)
    status, out, errors = _install(environment, *pins, str(wheel))
    assert status == 0, out + errors
    return Place(wheel, environment, scratch)


def _install(environment: Path, *words: str) -> tuple[int, str, str]:
    """Install with uv where it can, as tools/setup.sh does, and with pip otherwise."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is not None:
        cache = ("--cache-dir", str(environment.parent / "cache"))
        answer = _run(uv, "pip", "install", *cache, "--python", str(environment), *words)
        if answer[0] == 0:
            return answer
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(environment))
    return _run(*pip, "install", "--no-compile", *words)


def _no_index(errors: str) -> None:
    reason = f"no package index answers, so the wheel was NOT tried: {errors.strip()[-200:]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _modules(wheel: Path) -> list[str]:
    """Every module in the wheel but those that are programs or scripts of Alembic."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
    dotted = (name.removesuffix(".py").removesuffix("/__init__") for name in names)
    modules = [name.replace("/", ".") for name in dotted]
    return [name for name in modules if not _is_script(name)]


def _is_script(module: str) -> bool:
    last = module.rpartition(".")[2]
    return last in {"__main__", "env"} or ".versions." in module or not last.isidentifier()


@pytest.mark.parametrize(
    ("ci", "ending"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_index_is_never_passed_over(
    ci: str, ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a laptop the report says what was not tried; in continuous integration it fails."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ending, match="NOT tried: no route"):
        _no_index("no route\n")


def test_the_wheel_holds_what_is_not_python(wheel: Path) -> None:
    """Statements, contracts and templates come along; tests and caches do not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = ROOT / "src" / "ergon_framework"
    for kind in ("*.sql", "*.proto", "*.tmpl", "py.typed"):
        wanted = {str(each.relative_to(package.parent)) for each in package.rglob(kind)}
        assert wanted, kind
        assert wanted <= set(names), kind
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name]
    outside = {name.split("/")[0] for name in names}
    assert {each for each in outside if not each.endswith(".dist-info")} == {"ergon_framework"}


def test_nothing_optional_is_installed(place: Place) -> None:
    """Without extras, none of the packages that extras bring is there."""
    assert json.loads(place.answer(_FIND_EACH, "\n".join(NEVER))) == []


def test_every_module_is_imported_without_extras(place: Place) -> None:
    """Only modules that exist for the sake of an optional package need it, and none in public."""
    modules = _modules(place.wheel)
    assert len(modules) > 300
    failed: dict[str, list[str]] = json.loads(place.answer(_IMPORT_EACH, "\n".join(modules)))
    assert not failed.keys() & {*PUBLIC}
    for module, (missing, told) in failed.items():
        if module == "ergon_framework.testing.plugin":
            assert missing == "pytest"  # which loads it
            continue
        extra = [name for name in EXTRA_OF if f"{missing}.".startswith(f"{name}.")]
        assert extra, f"{module} needs {missing}: {told}"
    assert set(PUBLIC) <= set(modules)


def test_the_command_works_without_extras(place: Place) -> None:
    """Help, a new project, and its check."""
    status, out, errors = place.run("ergon", "--help")
    assert (status, errors) == (0, "")
    assert "new" in out
    status, out, errors = place.run("ergon", "new", "corner-shop")
    assert status == 0, errors
    assert "make setup" in out
    assert str(place.wheel) in (place.scratch / "corner-shop" / ".ergon.mk").read_text()
    project = place.scratch / "corner-shop"
    status, out, errors = place.run(
        "ergon", "check", cwd=str(project), PYTHONPATH=str(project / "src")
    )
    assert status == 0, out + errors


@pytest.mark.campaign  # pip fetches all that the project needs; its own tests run in tests/cli
@pytest.mark.req("ONE:new")
def test_a_new_project_is_set_up_as_the_command_says(place: Place) -> None:
    """The three commands that ``ergon new`` prints work as they stand, and so does the check."""
    status, out, errors = place.run("ergon", "new", "market", "--json")
    assert status == 0, errors
    enter, setup, test = json.loads(out)["next"]
    python = f"PYTHON={sys.executable}"  # the one of this test: python3 may be an older one
    script = f"set -e\n{enter}\n{setup} {python}\n{test}\nmake check\n"
    # pip takes "0" for "do not compile" here: the option switches something off.
    status, out, errors = _run("/bin/sh", "-c", script, cwd=str(place.scratch), PIP_NO_COMPILE="0")
    assert status == 0, out + errors
    assert "passed" in out
    assert "market.tasks:Orders" in out


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("api", ("serve", "--store", "sqlite:///calls.db", "--port", "0")),
        ("postgres", ("providers", "health", "--store", "postgresql://nobody@127.0.0.1:1/x")),
        ("postgres", ("db", "current", "--store", "postgresql://nobody@127.0.0.1:1/x")),
    ],
)
def test_a_command_names_the_extra_it_lacks(
    place: Place, extra: str, words: tuple[str, ...]
) -> None:
    """The message says what to install, and nothing was started."""
    status, _, errors = place.run("ergon", *words)
    assert status == 2, errors
    assert f"ergon-framework[{extra}]" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("extra", "variable", "value"),
    [
        ("otel", "ERGON_TELEMETRY__OTLP", "http://127.0.0.1:1"),
        ("prometheus", "ERGON_TELEMETRY__PROMETHEUS_PORT", "9464"),
    ],
)
def test_a_setting_names_the_extra_it_lacks(
    place: Place, extra: str, variable: str, value: str
) -> None:
    """Where spans and metrics are to go is said in the settings; what that takes is told."""
    words = ("worker", "--store", "sqlite:///jobs.db", "--burst")
    status, _, errors = place.run("ergon", *words, **{variable: value})
    assert status == 2, errors
    assert f"ergon-framework[{extra}]" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("api", "from ergon_framework.providers.api import create_router as f; f('memory://')"),
        ("celery", "import ergon_framework.providers.celery_task"),
        (
            "postgres",
            "from ergon_framework.providers.store_urls import open_store; open_store('postgresql:///x')",
        ),
    ],
)
def test_a_call_names_the_extra_it_lacks(place: Place, extra: str, code: str) -> None:
    """A program gets one kind of error, which is an ImportError too."""
    status, _, errors = place.run("python", "-c", code)
    assert status == 1
    last = errors.strip().splitlines()[-1]
    assert "MissingExtraError" in last
    assert f"ergon-framework[{extra}]" in last


@pytest.mark.parametrize("extra", ["api", "celery", "otel", "postgres", "prometheus"])
def test_the_doctor_names_every_extra(place: Place, extra: str) -> None:
    """In one place, before anything asks for it."""
    status, out, errors = place.run("ergon", "doctor", "--no-connect", "--json")
    assert status == 0, errors
    findings = {each["check"]: each for each in json.loads(out)}
    assert findings[f"extra {extra}"]["remedy"] == f"pip install 'ergon-framework[{extra}]'"
