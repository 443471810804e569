"""One-file scripts: typed handlers that can be enqueued, and a worker without a settings file."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

import ergon_framework
from ergon_framework import MemoryConnector
from ergon_framework.app.application import App
from ergon_framework.app.job_handlers import JobHandler
from ergon_framework.app.jobs import job_settings
from ergon_framework.app.signals import REPEAT_WINDOW
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    JobError,
    SettingsError,
    WiringError,
)
from ergon_framework.executor import InvalidArgumentsError, JobContext
from ergon_framework.jobs.client import EnqueuedJob, JobClient
from ergon_framework.ports.job_options import HandlerOptions
from ergon_framework.ports.jobstore import Search
from ergon_framework.providers.functions import ShortProviderOptions
from ergon_framework.storage.urls import store_operand, store_option
from ergon_framework.task.options import ConsumerOptions

pytestmark = pytest.mark.req("JOBS:client")
LATER = ("after", "on_failure")
"""Looked at when a job is enqueued, with the jobs it waits for."""
CONSUMER_OPTIONS = tuple(ConsumerOptions.__annotations__)


@dataclass
class Box:
    """Something a handler may ask for."""

    width: int


class Order(BaseModel):
    """The same, made by pydantic."""

    number: int


@pytest.fixture
def app() -> Iterator[App]:
    """An app whose store is in memory."""
    with App("memory://") as made:
        yield made


def resizer(app: App) -> JobHandler[[str, int], str]:
    """A handler with two arguments."""

    @app.job
    def resize(path: str, width: int = 100) -> str:
        """Make it smaller."""
        return f"{path}@{width}"

    return resize


def test_a_handler_is_still_the_function(app: App) -> None:
    """It can be called, and looks like what it wraps."""

    @app.job
    def resize(path: str, *, width: int = 100) -> str:
        """Make it smaller."""
        return f"{path}@{width}"

    assert_type(resize("a.png"), str)
    assert resize("a.png", width=3) == "a.png@3"
    assert getattr(resize, "__name__", "") == "resize"
    assert resize.__doc__ == "Make it smaller."
    assert repr(resize) == "<handler 'resize'>"
    assert app.registry.names == ["resize"]


def test_attributes_of_the_function_stay_there(app: App) -> None:
    """Libraries put some on functions; a handler keeps its own of the same names."""

    def ship(order: int) -> int:
        return order

    for name, value in {"name": "label", "app": None, "function": print, "enqueue": 1}.items():
        setattr(ship, name, value)
    handler = app.job(ship)
    assert (handler.name, handler(3)) == ("ship", 3)
    assert app.client.show(handler.enqueue(3))["handler"] == "test_application#ship"
    assert app.client.show(handler.options(queue="q").enqueue(3))["queue"] == "q"


def test_enqueue_takes_the_functions_own_arguments(app: App) -> None:
    """For the type checker, too: it must see what is wrong in the lines marked here."""

    @app.job
    def resize(path: str, *, width: int = 100) -> str:
        return path

    job = assert_type(resize.enqueue("a.png", width=3), EnqueuedJob)
    assert (app.client.show(job)["args"], app.client.show(job)["kwargs"]) == (
        ["a.png"],
        {"width": 3},
    )
    for wrong in (
        lambda: resize.enqueue(5),  # type: ignore[arg-type]
        lambda: resize.enqueue("a", wide=5),  # type: ignore[call-arg]
        lambda: resize.enqueue(width=5),  # type: ignore[call-arg]
        lambda: resize.enqueue("a", width="wide"),  # type: ignore[arg-type]
        lambda: resize.call("a", 3),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidArgumentsError):
            wrong()
    assert app.client.store.count(Search()) == 1


def test_names_and_options_of_a_handler(app: App) -> None:
    """Options are those of all its jobs, unless one call has others."""

    @app.job("img.resize", queue="images", max_attempts=3, timeout=10)
    def resize(path: str) -> None: ...

    shape = app.client.show(resize.enqueue("a"))
    assert (shape["handler"], shape["queue"]) == ("test_application#img.resize", "images")
    assert (shape["max_attempts"], shape["timeout"]) == (3, 10.0)
    later = app.client.show(resize.options(queue="other", id="mine").enqueue("a"))
    assert (later["id"], later["queue"], later["max_attempts"]) == ("mine", "other", 3)
    assert app.client.show(resize.enqueue("b"))["queue"] == "images"


def test_wrong_options_are_told_where_the_handler_is_defined(app: App) -> None:
    """Not at the first job."""
    with pytest.raises(JobError, match="max_attempts is 0"):
        app.job("x", max_attempts=0)(lambda: None)
    with pytest.raises(JobError, match="did you mean 'queue'"):
        app.job("y", queu="q")(lambda: None)  # type: ignore[call-overload]
    app.job("z")(lambda: None)
    with pytest.raises(WiringError, match="two handlers"):
        app.job("z")(lambda: None)


def test_arguments_may_be_of_any_type_that_json_can_be_turned_into(app: App) -> None:
    """Dates, dataclasses and models travel as JSON and are checked to come back."""
    seen = datetime(2030, 1, 2, tzinfo=UTC)

    @app.job
    def record(at: datetime, box: Box, order: Order, tags: set[str]) -> None: ...

    job = record.enqueue(seen, Box(3), Order(number=7), {"new"})
    assert app.client.show(job)["args"] == [
        "2030-01-02T00:00:00Z", {"width": 3}, {"number": 7}, ["new"],
    ]  # fmt: skip
    with pytest.raises(InvalidArgumentsError, match="'box'"):
        record.enqueue(seen, {"width": "x"}, Order(number=7), set())  # type: ignore[arg-type]


def test_arguments_without_a_form_in_json_are_refused(app: App) -> None:
    """With the type's name and never its content."""

    @app.job
    def take(what: Any) -> None: ...

    for wrong, told in ((object(), "object has no form in JSON"), (float("nan"), "nan")):
        with pytest.raises(JobError, match=told):
            take.enqueue(wrong)
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(JobError):
        take.enqueue(nested)
    assert app.client.store.count(Search()) == 0


def test_many_calls_are_one_commit(app: App) -> None:
    """Checked calls, tuples and dicts; one mistake and nothing is stored."""
    resize = resizer(app)
    ids = resize.options(queue="q").enqueue_many([resize.call("a", 1), ("b",), {"path": "c"}])
    assert [app.client.show(each)["queue"] for each in ids] == ["q"] * 3
    with pytest.raises(InvalidArgumentsError):
        resize.enqueue_many([("a",), (5,)])
    for bad in (None, 5, [5], ["a"]):
        with pytest.raises(JobError, match="must be a list of"):
            resize.enqueue_many(bad)  # type: ignore[arg-type]
    assert app.client.store.count(Search()) == 3


def test_an_event_loop_can_enqueue_too(app: App) -> None:
    """Both clients share one store."""
    resize = resizer(app)

    async def work() -> None:
        job = await resize.aenqueue("a", 3)
        assert await job.status() == "pending"
        with pytest.raises(InvalidArgumentsError):
            await resize.aenqueue(5, 3)  # type: ignore[arg-type]

    asyncio.run(work())
    assert app.client.store.count(Search()) == 1


def test_a_job_of_a_job_belongs_to_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its correlation id is that of the first job in the chain."""
    resize = resizer(app)
    running = "ergon_framework.app.job_handlers.current_job"
    monkeypatch.setattr(running, lambda: JobContext(job_id="outer"))
    inner = resize.enqueue("a", 1)
    other = resize.options(correlation_id="own").enqueue("a", 1)
    assert app.client.find(inner).correlation_id == "outer"
    assert app.client.find(other).correlation_id == "own"


def test_async_functions_and_hooks(app: App) -> None:
    """Handlers may be coroutines; hooks are those of the registry."""

    @app.job
    async def fetch(url: str) -> int:
        return len(url)

    @app.on_startup
    def begin() -> None: ...

    @app.on_shutdown
    def end() -> None: ...

    assert asyncio.run(fetch("abc")) == 3
    assert app.registry.startup_hooks == [begin]
    assert app.registry.shutdown_hooks == [end]


# ---- which store --------------------------------------------------------------------------------


def app_in(directory: Path, url: str | None = None, file: str = "work.py") -> App:
    """An app as a script in that folder would make it."""
    names: dict[str, Any] = {"__file__": str(directory / file), "App": App, "url": url}
    exec("app = App(url)", names)  # noqa: S102 - the file of the caller is what is tested
    made: App = names["app"]
    return made


def test_the_store_is_a_file_beside_the_script(tmp_path: Path) -> None:
    """Wherever the script is started from."""
    assert app_in(tmp_path).setup.url == f"sqlite:///{tmp_path / 'ergon.db'}"
    assert app_in(tmp_path, "sqlite:///own.db").setup.url == f"sqlite:///{tmp_path / 'own.db'}"
    assert app_in(tmp_path, "sqlite:////abs.db").setup.url == "sqlite:////abs.db"


def test_a_settings_file_beside_the_script_is_used(tmp_path: Path) -> None:
    """Its store, its defaults; a store given in the script comes first."""
    (tmp_path / "ergon.toml").write_text(
        '[store]\nurl = "sqlite:///named.db"\n[jobs]\nmax_attempts = 2\n'
    )
    setup = app_in(tmp_path).setup
    assert setup.url == f"sqlite:///{tmp_path / 'named.db'}"
    assert setup.jobs.max_attempts == 2
    assert app_in(tmp_path, "memory://").setup.url == "memory://"
    (tmp_path / "ergon.toml").write_text("[jobs]\nmax_atempts = 2\n")
    with pytest.raises(SettingsError, match="did you mean 'max_attempts'"):
        _ = app_in(tmp_path).client


def test_the_scripts_executor_is_added_to_those_of_the_settings(tmp_path: Path) -> None:
    """Unless the settings define one of its name, or another default."""
    (tmp_path / "ergon.toml").write_text('[executors.js]\ncommand = ["node", "x.js"]\n')
    app = app_in(tmp_path)
    with pytest.raises(WiringError, match="global name"):
        app.worker_setup({})
    (tmp_path / "ergon.toml").write_text('[executors.python]\ncommand = ["mine"]\n')
    setup = app_in(tmp_path).worker_setup({})
    assert setup.executors["python"].command == ("mine",)


held = App("memory://")


def test_an_app_of_a_module_is_found_by_its_name() -> None:
    """The executor's process imports it under that name."""
    setup = held.worker_setup({"pool_size": 1, "max_in_flight": 4})
    own = setup.executors["test_application"]
    command = own.command
    assert command[:3] == (sys.executable, "-m", "ergon_framework.executor")
    assert command[-1].endswith("test_application:held")
    assert (own.pool_size, setup.jobs.default_executor) == (1, "test_application")


def test_a_closed_app_opens_its_store_again(tmp_path: Path) -> None:
    """Both clients are let go."""
    app = app_in(tmp_path)
    resize = resizer(app)
    job = resize.enqueue("a", 1)
    asyncio.run(app.async_client.status(job))
    app.close()
    assert app.client.status(job) == "pending"
    app.close()
    app.close()


# ---- whose jobs they are ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("mail.py", "mail"),
        ("my mail#2.py", "my_mail_2"),
        ("\u90ae\u4ef6.py", "\u90ae\u4ef6"),
        ("shop/__main__.py", "shop"),
        ("shop/__init__.py", "shop"),
        ("x" * 200 + ".py", "x" * 100),
    ],
)
def test_a_script_is_called_like_its_file(tmp_path: Path, file: str, expected: str) -> None:
    """Whether it is run or imported; its jobs name it as their executor."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with app_in(path.parent, "memory://", path.name) as app:
        shape = app.client.show(resizer(app).enqueue("a", 1))
        assert app.executor == expected
    assert (shape["handler"], shape["executor"]) == (f"{expected}#resize", expected)


def test_what_has_no_file_has_no_name(tmp_path: Path) -> None:
    """Typed at a prompt or read from a pipe: its jobs go to any worker of the store."""
    with app_in(tmp_path, "memory://", "gone.py") as app:
        assert app.client.show(resizer(app).enqueue("a", 1))["handler"] == "resize"


def test_a_script_may_be_given_a_name(tmp_path: Path) -> None:
    """One that stays when the file is renamed."""
    with App("memory://", name="mail-v1") as app:
        assert app.client.show(resizer(app).enqueue("a", 1))["handler"] == "mail-v1#resize"
    wrongs: tuple[Any, ...] = ("", "a#b", "a b", "x" * 101, 5, b"mail", Path("mail"))
    for wrong in wrongs:
        with pytest.raises(ConfigurationError, match="is no name for a script") as refused:
            App(name=wrong)
        assert "up to 100 letters, digits" in (refused.value.remedy or "")


GUARD = 'if __name__ == "__main__":\n    '


@contextmanager
def as_program(path: Path, source: str) -> Iterator[dict[str, Any]]:
    """The globals of a script that is run by Python, as far as a script can be run in here."""
    path.write_text(textwrap.dedent(source))
    module = ModuleType("the_program")
    module.__file__ = str(path)
    module.__dict__["__name__"] = "__main__"
    sys.modules["the_program"] = module
    try:
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)  # noqa: S102 - ours
        yield module.__dict__
    finally:
        del sys.modules["the_program"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (GUARD + "app = App()", "is made under `if __name__"),
        ("def main():\n    global app\n    app = App()\n" + GUARD + "main()", "is made in main"),
        ("def make():\n    return App()\n\nheld = [make()]\napp = None", "is made in make"),
    ],
)
def test_an_app_that_no_import_makes_is_refused(tmp_path: Path, source: str, told: str) -> None:
    """Executors import the file and would not find it; the error says where to make it."""
    source = f"from ergon_framework import App\n\n{source}\n"
    with as_program(tmp_path / "shop.py", source) as names:
        app: App = names["app"] or names["held"][0]
        app.job(resize_alone)
        with app, pytest.raises(WiringError, match=f"shop.py {told}.*they import the file") as why:
            app.run(burst=True)
    assert "app = App() at the top level of the file" in why.value.remedy


@pytest.mark.parametrize(
    "source",
    [
        "app = App()",
        "def make():\n    return App()\n\napp = make()",
        "def make():\n    global app\n    app = App()\n\nmake()",
        'if __name__ != "x":\n    app = App()',
        "try:\n    import nowhere\nexcept ImportError:\n    app = App()",
    ],
)
def test_an_app_that_an_import_makes_is_found(tmp_path: Path, source: str) -> None:
    """However the file comes to it."""
    source = f"from ergon_framework import App\n\n{source}\n"
    with as_program(tmp_path / "shop.py", source) as names, names["app"] as app:
        command = app.worker_setup({}).executors["shop"].command
    assert command[-1] == f"{tmp_path / 'shop.py'}:app"


def resize_alone(path: str) -> str:
    """A handler."""
    return path


def test_two_apps_of_one_file_need_names(tmp_path: Path) -> None:
    """Each would take jobs of the other; with a name, another store or no handlers all is well."""
    source = """
    from ergon_framework import App

    mail, post = App(), App()
    """
    with as_program(tmp_path / "shop.py", source) as names:
        mail, post = names["mail"], names["post"]
        mail.job(resize_alone)
        mail.drain()
        post.job(resize_alone)
        for refused in (mail.drain, mail.run, post.drain):
            with pytest.raises(WiringError, match=r"two Apps of one file.*both are called 'shop'"):
                refused()
        names["post"] = App(f"sqlite:///{tmp_path / 'ergon.db'}", name="post")
        names["post"].job(resize_alone)
        mail.drain()
        names["post"].drain()
        for each in (mail, post, names["post"]):
            each.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"source": ""}, "as source is an empty text; is a variable unset"),
        ({"source": 5}, "as source is a int"),
        ({"source": b"memory://"}, "as source is a bytes"),
        ({"source": "work.db"}, "must say of which kind it is .*sqlite:///work.db"),
        ({"source": "sqllite:///x"}, "did you mean sqlite"),
        ({"url": Path("work.db")}, "as url is a PosixPath"),
        ({"url": ""}, "as url is an empty text"),
        ({"config": 5}, "as config is a int"),
        ({"config": ""}, "as config is an empty text"),
    ],
)
def test_an_app_is_given_a_store_or_a_file(given: dict[str, Any], told: str) -> None:
    """Anything else is refused at once, and not taken for a default."""
    with pytest.raises(ConfigurationError, match=told):
        App(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        *(({"processes": each}, "processes must be a whole number") for each in (0, -1, "2", True)),
        ({"processes": 2000}, "processes must be a whole number from 1 to 1024, not 2000"),
        ({"max_jobs_per_process": 0}, "max_jobs_per_process must be a whole number of 1 or more"),
        ({"max_memory_per_process": "1G"}, "max_memory_per_process must be a whole number"),
        ({"max_process_age": 0}, "max_process_age must be a number above 0, not 0"),
        ({"max_in_flight": 2000}, "max_in_flight must be a whole number from 1 to 1024, not 2000"),
        ({"burst": "no"}, "burst must be True or False, not 'no'"),
        ({"queues": []}, "queues is"),
        *(({"queues": each}, "queues is") for each in (5, b"mail")),
        ({"queues": ""}, "queues is empty"),
        ({"queues": ["mail", None]}, "queues must be text, not NoneType"),
    ],
)
def test_wrong_values_of_a_run_are_refused(app: App, given: dict[str, Any], told: str) -> None:
    """Before anything is opened; a drain refuses the same."""
    with pytest.raises((ConfigurationError, JobError), match=told):
        app.run(**given)
    for name in given.keys() & {"queues"}:
        with pytest.raises((ConfigurationError, JobError), match=told):
            app.drain(queues=given[name])
    wrong: Any = 1
    with pytest.raises(ConfigurationError, match=r"app\.drain: raises must be True or False"):
        app.drain(raises=wrong)


@pytest.mark.parametrize("wrong", [b"x", object(), float("nan")])
def test_every_option_of_an_app_is_checked_where_it_is_written(app: App, wrong: Any) -> None:
    """Also one that is added tomorrow: none of these is a value of any option."""
    handler = app.job(resize_alone)
    declared: list[tuple[Any, Any]] = [
        *((partial(app.job, "x"), each) for each in HandlerOptions.__annotations__),
        *((handler.options, each) for each in HandlerOptions.__annotations__ if each not in LATER),
        *((partial(app.consumer, MemoryConnector()), each) for each in CONSUMER_OPTIONS),
        *((partial(app.provider, "rates"), each) for each in ShortProviderOptions.__annotations__),
        *((app.schedule, each) for each in ("every", "timezone", "args", "kwargs", "overlap")),
    ]

    def decorate(declare: Any, option: str) -> None:
        declare(**{option: wrong})(resize_alone if option != "every" else print)

    for declare, option in declared:
        with pytest.raises(ErgonError) as refused:
            decorate(declare, option)
        assert refused.value.remedy or option in refused.value.message, option


def test_the_size_of_an_executor_of_the_settings_is_theirs(tmp_path: Path) -> None:
    """A number in the script would have no effect."""
    (tmp_path / "ergon.toml").write_text('[executors.python]\ncommand = ["mine"]\n')
    with pytest.raises(ConfigurationError, match=r"pool_size = 4 under \[executors.python\]"):
        app_in(tmp_path).worker_setup({"pool_size": 4})


def test_settings_with_executors_say_who_runs_the_jobs_of_a_script(tmp_path: Path) -> None:
    """A worker made of these settings has no executor of the script's name."""
    (tmp_path / "work.py").touch()
    (tmp_path / "ergon.toml").write_text('[executors.python]\ncommand = ["mine"]\n')
    with app_in(tmp_path, "memory://") as app:
        assert app.client.show(resizer(app).enqueue("a", 1))["handler"] == "resize"


# ---- whole scripts ------------------------------------------------------------------------------

SCRIPT = """
from pathlib import Path
from ergon_framework.app.signals import REPEAT_WINDOW
from ergon_framework.app.application import App

app = App()

@app.job
def resize(path: str, *, width: int = 100) -> str:
    print("handlers may print")
    return f"{path}@{width}"

@app.job(max_attempts=1)
async def fail() -> None:
    resize.enqueue("from inside")
    raise ValueError("no such picture")

@app.job
def stay() -> None:
    import threading
    with open(Path(__file__).with_name("started"), "w") as started:
        started.write("yes")
    threading.Event().wait(60)

if __name__ == "__main__":
    {main}
"""


@contextmanager
def script(directory: Path, main: str) -> Iterator[subprocess.Popen[str]]:
    """A script of its own, running."""
    path = directory / "work.py"
    path.write_text(
        SCRIPT.replace("{main}", textwrap.indent(textwrap.dedent(main), "    ").strip())
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_script_enqueues_and_runs_its_jobs(tmp_path: Path) -> None:
    """No settings file, no other command; a handler may enqueue more."""
    main = """
    job, bad = resize.enqueue("a.png", width=3), fail.enqueue()
    report = app.run(burst=True, processes=1, max_jobs_per_process=2)
    print(report.completed, report.failed, job.result(0), bad.status())
    """
    with script(tmp_path, main) as process:
        out, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    assert out == "2 1 a.png@3 failed\n"
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        shapes = [client.show(job.id) for job in client.store.search(Search(handler="work#resize"))]
        (bad,) = client.store.search(Search(handler="work#fail"))
        (ended,) = client.store.ended_workers()
    assert ended.executors["work"]["recycled"] == {
        "max_jobs": 1
    }  # three jobs, two for each process
    assert sorted(shape["result"] for shape in shapes) == ["a.png@3", "from inside@100"]
    assert {shape["correlation_id"] for shape in shapes} == {None, bad.id}


def ran(path: Path, *arguments: str) -> str:
    """What a script printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        env=environ,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queue", "json"])
def test_a_script_that_hides_a_module_of_python_is_refused(tmp_path: Path, name: str) -> None:
    """Before it stores a job: its worker could not import the module, or not record an outcome."""
    path = tmp_path / f"{name}.py"
    path.write_text(NEIGHBOUR)
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(path), "ada"], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1
    assert f"is called like Python's module {name!r}" in done.stderr
    assert f"(rename the file, for example to my_{name}.py)" in done.stderr
    assert not list(tmp_path.glob("ergon.db*"))


NEIGHBOUR = """
import sys
from ergon_framework import App

app = App()

@app.job
def send(to: str) -> str:
    return f"{__file__} to {to}"

if __name__ == "__main__":
    if sys.argv[1:]:
        print(send.enqueue(sys.argv[1]))
    else:
        print(app.run(burst=True, processes=1).completed)
"""


@pytest.mark.slow
def test_two_scripts_in_one_folder_run_only_their_own_jobs(tmp_path: Path) -> None:
    """They share a store, and may have handlers of one name; a job waits for its own script."""
    mail, sms = tmp_path / "mail.py", tmp_path / "sms.py"
    for path in (mail, sms):
        path.write_text(NEIGHBOUR)
    jobs = [ran(mail, "ada"), ran(sms, "bob")]
    assert ran(mail) == "1"
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        assert [client.status(job) for job in jobs] == ["completed", "pending"]
        assert ran(sms) == "1"
        assert [client.result(job) for job in jobs] == [f"{mail} to ada", f"{sms} to bob"]


@pytest.mark.slow
def test_jobs_from_before_a_script_had_a_name_still_run(tmp_path: Path) -> None:
    """Those that name no executor, and those that name the one which every script had."""
    path = tmp_path / "mail.py"
    path.write_text(NEIGHBOUR)
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        jobs = [client.enqueue(name, ["ada"]) for name in ("send", "python#send")]
        assert ran(path) == "2"
        assert [job.result(0) for job in jobs] == [f"{path} to ada"] * 2


HIDDEN = """
from ergon_framework import App

app = App()

def main() -> None:
    @app.job
    def shrink(path: str) -> str:
        return path

    job = shrink.enqueue("a.png")
    app.run(burst=True, processes=1)
    try:
        job.result(timeout=0)
    except TimeoutError as error:
        print(error)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_handler_that_an_import_does_not_define_is_told_with_what_to_do(tmp_path: Path) -> None:
    """By each run, although only the first is given the job; by who waits; and by the job."""
    path = tmp_path / "hidden.py"
    path.write_text(HIDDEN)
    advice = "define it at the top level of the file, outside of functions"
    for _ in range(2):
        done = subprocess.run(  # noqa: S603 - our own script
            [sys.executable, str(path)], capture_output=True, text=True, timeout=50, check=False
        )
        assert "executor 'hidden' has no handler 'shrink', although the program" in done.stderr
        assert done.stderr.count(advice) == 1
        assert "and waits for a worker that has the handler 'hidden#shrink'" in done.stdout
        assert "ergon why" in done.stdout
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        told = [str(client.show(job.id)["history"]) for job in client.store.search(Search())]
    assert len(told) == 2
    assert any(advice in each for each in told)


@pytest.mark.slow
def test_a_script_may_import_its_app_behind_the_guard(tmp_path: Path) -> None:
    """An executor imports the module that makes the App, for the script would not hold it."""
    (tmp_path / "mail.py").write_text(NEIGHBOUR.partition("if __name__")[0])
    (tmp_path / "serve.py").write_text(
        'if __name__ == "__main__":\n'
        "    from mail import app, send\n\n"
        '    job = send.enqueue("ada")\n'
        "    app.run(burst=True, processes=1)\n"
        "    print(job.result())\n"
    )
    assert ran(tmp_path / "serve.py").endswith("mail.py to ada")
    (tmp_path / "shop").mkdir()
    (tmp_path / "mail.py").rename(tmp_path / "shop" / "post.py")
    program = (tmp_path / "serve.py").read_text()
    (tmp_path / "serve.py").write_text(program.replace("from mail", "from shop.post"))
    assert ran(tmp_path / "serve.py").endswith("post.py to ada")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unguarded", "what"),
    [("app.run(burst=True, processes=1)", "starts a worker"), ("hi.enqueue()", "enqueues a job")],
)
def test_a_script_without_a_guard_does_not_multiply(
    tmp_path: Path, unguarded: str, what: str
) -> None:
    """Its executors import it: what it does then is refused there, and the reason is told."""
    path = tmp_path / "work.py"
    path.write_text(
        "import os\n"
        "from ergon_framework import App\n"
        "app = App()\n"
        "@app.job\n"
        "def hi():\n"
        "    return 1\n"
        "if __name__ == '__main__':\n"
        "    hi.enqueue()\n"
        f"{unguarded}\n"
        "app.run(burst=True, processes=1)\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ERGON_")}
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        env=environ,
        timeout=50,
        check=False,
    )
    assert done.returncode != 0
    assert f"'{path}' {what} while it is imported" in done.stderr
    assert 'put that under `if __name__ == "__main__":`' in done.stderr
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        jobs = list(client.store.search(Search()))
    assert {str(job.status) for job in jobs} == {"pending"}
    assert len(jobs) == (2 if "enqueue" in unguarded else 1)


@pytest.mark.slow
def test_a_script_ends_by_a_signal(tmp_path: Path) -> None:
    """The first waits for what runs; the second does not, and the job goes back uncharged."""
    os.mkfifo(tmp_path / "started")
    with script(tmp_path, 'stay.options(id="a").enqueue(); app.run(processes=1)') as process:
        assert (tmp_path / "started").read_text() == "yes"
        process.send_signal(signal.SIGINT)
        time.sleep(REPEAT_WINDOW + 0.1)  # sooner, it is taken for the same wish
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=50)
    assert process.returncode == 0, err
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        shape = client.show("a")
    assert (shape["status"], shape["attempts"]) == ("pending", 0)
    assert shape["history"][-1]["event"] == "released"


UNOPENED = """
from collections.abc import Iterator
from ergon_framework import App

app = App()

@app.lifespan
def database() -> Iterator[None]:
    raise OSError("no route to the database")
    yield

@app.job
def send() -> None: ...

if __name__ == "__main__":
    send.options(id="a").enqueue()
    app.run(processes=1)
"""


@pytest.mark.slow
def test_a_script_whose_lifespan_does_not_open_ends_with_an_error(tmp_path: Path) -> None:
    """Not at the first failure, and not never; the job waits, and says what it waits for."""
    path = tmp_path / "work.py"
    path.write_text(UNOPENED)
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(path)], capture_output=True, text=True, timeout=50, check=False
    )
    reason = "the lifespan 'database' failed before its yield: OSError: no route to the database"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ergon_framework.errors.ExecutorError: executor 'work' does not start, tried 6 times:"
    )
    assert f"{reason} (it is declared in {path}:7)" in done.stderr.splitlines()[-1]
    with JobClient(f"sqlite:///{tmp_path / 'ergon.db'}") as client:
        shape = client.show("a")
    assert (shape["status"], shape["attempts"]) == ("pending", 0)
    unread = [each for each in shape["history"] if each["why"] == "executor_not_up"]
    assert all(reason in each["message"] for each in unread)


FAILING = """
from ergon_framework import App

app = App()

@app.job(max_attempts=1)
def shrink(path):
    raise ValueError("no such picture")

if __name__ == "__main__":
    job = shrink.enqueue("a.png")
    app.run(burst=True)
    job.result()
"""


@pytest.mark.slow
def test_the_hint_of_a_failed_job_works_when_pasted(tmp_path: Path) -> None:
    """The command in the error explains the job from any folder; beside the store all others do."""
    home, elsewhere = tmp_path / "a script's home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "script.py").write_text(FAILING)
    failed = subprocess.run(
        [sys.executable, "script.py"], cwd=home, capture_output=True, text=True, check=False
    )
    [hint] = re.findall(r"ergon why (.*)\)$", failed.stderr, re.MULTILINE)
    told = _ergon(elsewhere, "why", *shlex.split(hint))
    assert told.startswith(f"Job {shlex.split(hint)[0]} failed.\n")
    assert "no such picture" in told
    assert _ergon(home, "why", shlex.split(hint)[0]) == told
    assert "shrink" in _ergon(home, "jobs", "list")
    assert "shrink" in _ergon(home, "dlq", "list")


def _ergon(folder: Path, *words: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "ergon_framework", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_store_in_the_working_directory_is_not_taken_for_that_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``App()`` has its store beside the script, wherever the script is called from."""
    (tmp_path / "ergon.db").touch()
    monkeypatch.chdir(tmp_path)
    assert App().setup.url == f"sqlite:///{Path(__file__).parent / 'ergon.db'}"


def names_store(folder: Path, name: str) -> Path:
    """A settings file in that folder whose store is ``name`` beside it."""
    file = folder / "ergon.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{name}"\n')
    return file


def test_settings_in_the_working_directory_are_not_taken_for_those_of_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script has one store, from whatever folder it is started; a prompt has that of its own."""
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    names_store(tmp_path / "theirs", "theirs.db")
    monkeypatch.chdir(tmp_path / "theirs")
    assert app_in(tmp_path / "mine").setup.url == f"sqlite:///{tmp_path / 'mine' / 'ergon.db'}"
    names: dict[str, Any] = {"App": App}
    exec("app = App()", names)  # noqa: S102 - as typed at a prompt
    assert names["app"].setup.url == f"sqlite:///{tmp_path / 'theirs' / 'theirs.db'}"


def test_a_module_of_a_package_has_the_settings_of_its_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the folder that the package is in, and not those of folders above."""
    package = tmp_path / "project" / "shop" / "jobs"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    monkeypatch.chdir("/")
    names_store(tmp_path, "above.db")
    assert app_in(package).setup.url == f"sqlite:///{package / 'ergon.db'}"
    names_store(tmp_path / "project", "project.db")
    assert app_in(package).setup.url == f"sqlite:///{tmp_path / 'project' / 'project.db'}"
    names_store(package, "own.db")
    assert app_in(package).setup.url == f"sqlite:///{package / 'own.db'}"


def test_settings_that_the_environment_names_come_before_those_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in every command, which would otherwise look into another store than the script."""
    for name in ("repo", "etc", "given", "stored"):
        (tmp_path / name).mkdir()
    names_store(tmp_path / "repo", "dev.db")
    monkeypatch.setenv("ERGON_CONFIG", str(names_store(tmp_path / "etc", "prod.db")))
    assert app_in(tmp_path / "repo").setup.url == f"sqlite:///{tmp_path / 'etc' / 'prod.db'}"
    given = App(config=names_store(tmp_path / "given", "given.db"))
    assert given.setup.url == f"sqlite:///{tmp_path / 'given' / 'given.db'}"
    (tmp_path / "stored" / "ergon.db").touch()
    monkeypatch.setenv("ERGON_CONFIG", str(tmp_path / "stored"))
    assert app_in(tmp_path / "repo").setup.url == f"sqlite:///{tmp_path / 'stored' / 'ergon.db'}"
    assert job_settings().url == f"sqlite:///{tmp_path / 'stored' / 'ergon.db'}"
    monkeypatch.setenv("ERGON_CONFIG", str(tmp_path / "missing.toml"))
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        _ = app_in(tmp_path / "repo").setup


def test_an_app_of_a_subclass_is_beside_the_script_that_makes_it(tmp_path: Path) -> None:
    """Not beside the class, which many scripts may share."""
    shared: dict[str, Any] = {"__file__": str(tmp_path / "shared" / "apps.py"), "App": App}
    code = "class Own(App):\n    def __init__(me):\n        super().__init__()\n"
    exec(code, shared)  # noqa: S102 - as a module of its own
    names: dict[str, Any] = {"__file__": str(tmp_path / "shop.py"), "Own": shared["Own"]}
    exec("app = Own()", names)  # noqa: S102 - as a script
    assert names["app"].setup.url == f"sqlite:///{tmp_path / 'ergon.db'}"


def test_an_app_keeps_nothing_inside_the_package() -> None:
    """All projects of an installation would share it, and an upgrade would remove it."""
    inside = Path(ergon_framework.__file__).parent / "integrations" / "tool.py"
    with pytest.raises(WiringError, match="inside the installed package of Ergon"):
        exec("App()", {"__file__": str(inside), "App": App})  # noqa: S102 - as a part of ours


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("sqlite:////a/b c.db", " --store 'sqlite:////a/b c.db'"),
        ("postgresql://me@host/work", " --store postgresql://me@host/work"),
        ("postgresql://me:secret@host/work", ""),
        ("postgresql://host/work?password=secret", ""),
        ("postgresql:///work?host=/run/pg", " --store 'postgresql:///work?host=/run/pg'"),
        ("nats://secret@host", ""),
        ("memory://", ""),
        ("", ""),
    ],
)
def test_a_hint_names_the_store_without_its_password(url: str, option: str) -> None:
    """A URL with a password is left out of the command: whoever pastes it names the store."""
    assert store_option(url) == option


VARIABLE = '"${URL_OF_THE_STORE:?the URL of the store, with its password}"'


@pytest.mark.parametrize(
    ("url", "operand"),
    [
        (
            "postgresql://me:secret@host:5433/work?sslmode=require&options=-csearch_path%3Dx",
            "'postgresql://me@host:5433/work?options=-csearch_path%3Dx&sslmode=require'",
        ),
        ("postgresql://host/work?password=secret&user=me", "'postgresql://host/work?user=me'"),
        ("postgresql://me@a:1,b:2/work", "postgresql://me@a:1,b:2/work"),
        ("redis://:secret@host/0", VARIABLE),
        ("nats://secret@host", VARIABLE),
        ("postgresql://me:se/cret@host/work", VARIABLE),
        ("postgresql://me:se/cr?et@host/work", VARIABLE),
        ("postgresql://me@host/work?sslpassword=secret", VARIABLE),
    ],
)
def test_a_command_names_a_server_without_its_password(url: str, operand: str) -> None:
    """PostgreSQL takes it from elsewhere; for others a shell asks for the variable with the URL."""
    assert store_operand(url) == operand
    assert "secret" not in operand


def test_a_folder_that_no_url_can_name_is_told(tmp_path: Path) -> None:
    """The user wrote no URL: the error says which folder, and what to do."""
    folder = tmp_path / "what?"
    folder.mkdir()
    code = "from ergon_framework import App; app = App()\n@app.job\ndef f(): ...\nf.enqueue()"
    (folder / "work.py").write_text(code, encoding="utf-8")
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(folder / "work.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"the folder {folder} cannot hold a store" in done.stderr
