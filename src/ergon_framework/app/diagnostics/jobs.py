"""Checking and examining the jobs part: executors and their handlers, schedules, the job store.

The handlers of an executor are asked for in the executor's own Python, in a process of its own.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ergon_framework.app.diagnostics.findings import (
    TIMEOUT,
    Finding,
    FindingStatus,
    SettingsCheck,
    all_within,
    emptied,
    of_error,
    of_store,
    store_path,
)
from ergon_framework.app.earlier_store import earlier_store
from ergon_framework.app.jobs import JobSetup, setup_of
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import (
    check_folder,
    file_has_jobs,
    has_jobs,
    is_in_memory,
    store_url,
)
from ergon_framework.core.job import route
from ergon_framework.core.text import toml_table
from ergon_framework.errors import ErgonError, StoreUnavailableError, WiringError
from ergon_framework.jobs import parquet_files
from ergon_framework.jobs.child_process import executor_environment
from ergon_framework.jobs.pool import checked
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.store_urls import check_url
from ergon_framework.ports.transfer import move_state_of, refuse_unusable
from ergon_framework.storage.urls import file_of, given_options, pasteable, store_operand

if TYPE_CHECKING:
    from ergon_framework.ports.jobstore import FullJobStore


IMPORT_TIMEOUT = 60.0
"""Seconds for importing the handlers."""
MAX_OUTPUT = 500
"""Characters of what a program said last."""
_MODULES = (["ergon_framework.executor"], ["ergon_framework.cli", "executor"])
# Both answers begin with an empty line: what the user's modules print may not end with a newline,
# and only the last line is read.
_LOADER = """
import json, sys
from ergon_framework.errors import ErgonError
from ergon_framework.executor.loading import load
try:
    registry = load(sys.argv[1])
    registry.prepare()
    print("", json.dumps(registry.names), sep="\\n")
except ErgonError as error:
    print("", json.dumps([error.message, error.remedy]), sep="\\n")
    sys.exit(3)
"""
_PROVIDER_LOADER = """
import sys
from ergon_framework.app.providers import provider_factory
from ergon_framework.app.settings import load_settings
provider_factory(sys.argv[1], load_settings()).check()
"""
_REFUSED = 3


def check_handlers(executor: ExecutorSettings, environ: Mapping[str, str]) -> list[str] | None:
    """Refuse an executor of ours whose handlers cannot be imported; ``command`` is a full path.

    Returns the names of its handlers; None for a program that is not asked.
    """
    found = _python_and_app(executor.command)
    if found is None:
        return None
    python, app = found
    try:
        done = _run(python, _LOADER, app, executor, environ)
    except subprocess.TimeoutExpired as error:
        raise _refusal(
            f"its handlers are not imported within {IMPORT_TIMEOUT:g} s",
            "import no more than handlers",
        ) from error
    # The loader's own refusal, as JSON; with any other code the program itself broke.
    if done.returncode == _REFUSED:
        raise _refusal(*json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        because = "".join(f": {line.strip()[:MAX_OUTPUT]}" for line in last)
        raise _refusal(
            f"{app!r} cannot be imported by {python}{because}", "run its command by hand"
        )
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def has_provider(name: str, executor: ExecutorSettings, environ: Mapping[str, str]) -> bool:
    """Whether an executor of ours can import the class of a provider and takes its options."""
    found = _python_and_app(executor.command)
    try:
        return (
            found is not None
            and not _run(found[0], _PROVIDER_LOADER, name, executor, environ).returncode
        )
    except subprocess.TimeoutExpired:
        return False


def _run(
    python: str, code: str, argument: str, executor: ExecutorSettings, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 - the operator's own program
        [python, "-c", code, argument],
        cwd=executor.cwd,
        env={**environ, **executor.env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=IMPORT_TIMEOUT,
        check=False,
    )


def _python_and_app(command: Sequence[str]) -> tuple[str, str] | None:
    program, *rest = command
    if Path(program).name == "ergon" and rest[:1] == ["executor"]:
        is_ours = Path(program).parent == Path(sys.executable).parent
        return _with_app(sys.executable, rest[1:]) if is_ours else None
    for module in _MODULES:
        if rest[: 1 + len(module)] == ["-m", *module]:
            return _with_app(program, rest[1 + len(module) :])
    return None


def _with_app(python: str, arguments: Sequence[str]) -> tuple[str, str] | None:
    for n, each in enumerate(arguments):
        if each.startswith("--app="):
            return python, each.removeprefix("--app=")
        if each == "--app" and n + 1 < len(arguments):
            return python, arguments[n + 1]
    return None


def _refusal(problem: str, remedy: str) -> WiringError:
    return WiringError(problem, remedy=remedy, details={"key": ["command"]})


def check_jobs(checking: SettingsCheck) -> None:
    """Note what would keep a worker, or a client of its store, from starting."""
    setup = setup_of(checking.settings)
    _check_store(checking, setup)
    known: dict[str, list[str]] = {}
    for name, executor in setup.executors.items():
        with checking.collect("executors", name):
            given = executor_environment(checking.environ, executor, checking.settings.variables)
            found = check_handlers(checked(name, executor), given)
            if found is not None:
                known[name] = found
    _check_schedules(checking, setup, known)
    archive = setup.jobs.archive
    if archive is not None and archive.format == "parquet":
        with checking.collect("jobs", "archive", "format"):
            parquet_files.require()
    _check_default(checking, setup)
    for queue, wanted in setup.jobs.routes.items():
        _check_executor(checking, setup, ("jobs", "routes", queue), wanted)
    if setup.schedules and not setup.executors and not checking.has_problem("executors"):
        problem = "schedules need a worker, and there is no executor for one"
        checking.add_problem(("schedules",), problem, "add a table [executors.NAME] with a command")


def _check_schedules(checking: SettingsCheck, setup: JobSetup, known: dict[str, list[str]]) -> None:
    """Each job of a schedule whose handler is not there would be a dead letter."""
    only = next(iter(setup.executors), "") if len(setup.executors) == 1 else ""
    default = setup.jobs.default_executor or only
    for name, schedule in setup.schedules.items():
        named, handler = route(schedule.handler)
        if named and setup.executors:
            _check_executor(checking, setup, ("schedules", name, "handler"), named)
        executor = named or setup.jobs.routes.get(schedule.queue) or default
        names = known.get(executor)
        if names is not None and handler not in names:
            hint = did_you_mean(handler, names)
            problem = f"the executor {executor!r} has no handler {handler!r}; {hint}"
            checking.add_problem(
                ("schedules", name, "handler"), problem, "correct the name, or write it"
            )


def _check_store(checking: SettingsCheck, setup: JobSetup) -> None:
    path = store_path(checking, ("jobs", "store"))
    if setup.url and not checking.has_problem(*path):
        with checking.collect(*path):
            check_url(setup.url)
            check_folder(file_of(setup.url))
            if setup.executors:
                setup.kept()
    elif setup.executors and not setup.url and not checking.has_problem("store"):
        remedy = 'write url = "sqlite:///work.db" under [store]'
        checking.add_problem(("executors",), "there is no store for the jobs", remedy)


def _check_default(checking: SettingsCheck, setup: JobSetup) -> None:
    name = setup.jobs.default_executor
    if name:
        _check_executor(checking, setup, ("jobs", "default_executor"), name)
    elif len(setup.executors) > 1:
        known = ", ".join(setup.executors)
        path = ("jobs",) if checking.has("jobs") else ("executors",)
        remedy = f"write default_executor under [jobs]: one of {known}"
        checking.add_problem(path, "there are several executors and no default", remedy)


def _check_executor(
    checking: SettingsCheck, setup: JobSetup, path: tuple[str, ...], wanted: str
) -> None:
    if wanted not in setup.executors and not checking.has_problem("executors", wanted):
        hint = did_you_mean(wanted, list(setup.executors))
        remedy = f"add a table {toml_table('executors', wanted)}"
        checking.add_problem(path, f"there is no executor {wanted!r}; {hint}", remedy)


STORE = "job store"
"""What the finding about it is called."""


def examine_jobs(
    settings: Settings, *, connects: bool, timeout: float = TIMEOUT
) -> Iterator[Finding]:
    """One finding for each executor, for the store, and for each queue that nobody may serve.

    Without executors or ``[jobs]`` only jobs that the store of everything already has.
    """
    earlier = earlier_store(settings) if connects else None
    if earlier is not None:
        yield Finding("earlier job store", FindingStatus.NOTE, earlier.found, earlier.remedy())
    if not {"executors", "jobs"} & settings.extensions.keys():
        if connects:
            yield from of_store(store_url(settings), check_url, _looked_into, timeout)
        return
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.jobs.pool import checked
    from ergon_framework.jobs.worker import default_executor

    setup = setup_of(settings)
    for name, executor in setup.executors.items():
        try:
            found = checked(name, executor).command[0]
            yield Finding(f"executor {name}", FindingStatus.OK, found)
        except ErgonError as error:
            yield of_error(f"executor {name}", error)
    if setup.executors:
        try:
            default = default_executor(setup.jobs, setup.executors)
            yield Finding("default executor", FindingStatus.OK, default)
        except ErgonError as error:
            yield of_error("default executor", error)
    if not connects or not setup.url:
        return
    yield from all_within(STORE, lambda: _opened(setup.url), timeout)


def _opened(url: str) -> Sequence[Finding]:
    from ergon_framework.jobs.store_urls import open_store

    try:
        # Opened, it would get its tables anew.
        if (lost := emptied(STORE, file_of(url), store=url)) is not None:
            return [lost]
        with closing(open_store(url)) as store:
            return [_of(store, url), *_pins(store, url)]
    except ErgonError as error:
        return [of_error(STORE, error)]


def _kept(store: FullJobStore, url: str) -> Finding:
    """The durability of an acknowledged job in this store."""
    if not is_in_memory(url):  # of a server, the row of its durability tells
        return Finding(STORE, FindingStatus.OK, store.durability, store=url)
    remedy = "fine for trials; for work that may not be lost write sqlite:///jobs.db"
    return Finding(STORE, FindingStatus.NOTE, store.durability, remedy, store=url)


def _looked_into(url: str) -> Sequence[Finding]:
    from ergon_framework.jobs.store_urls import open_store

    try:
        if not _are_there(url):
            return []
        with closing(open_store(url, read_only=True)) as store:
            refuse_unusable(move_state_of(store), store_operand(url))
            return [_of(store, url), *_pins(store, url)]
    except StoreUnavailableError:
        return []
    except ErgonError as error:
        return [of_error(STORE, error)]


def _of(store: FullJobStore, url: str) -> Finding:
    """A store that answers, and whether it has rows that cannot be read."""
    aside = len(store.unreadable())
    if not aside:
        return _kept(store, url)
    number = "1 row" if aside == 1 else f"{aside:,} rows"
    found = f"{number} of jobs cannot be read and were set aside"
    remedy = f"this lists them:  ergon jobs unreadable{given_options(None, url)}"
    return Finding(STORE, FindingStatus.BAD, found, remedy, store=url)


def _pins(store: FullJobStore, url: str) -> Iterator[Finding]:
    """Queues whose jobs wait for a version that no living worker runs."""
    from ergon_framework.jobs.views import without_version

    options = given_options(None, url)
    missing = without_version(store.pinned_queues(), store.workers(), store.now())
    for queue, version in sorted(missing.items()):
        found = f"pinned to version {version!r}, and no living worker runs that version"
        start = f"ergon worker --version {shlex.quote(version)}{options}"
        remedy = f"start one:  {start}  or let all workers in:  "
        remedy += pasteable("queues unpin", queue, options)
        yield Finding(f"queue {queue}", FindingStatus.NOTE, found, remedy, store=url)


def _are_there(url: str) -> bool:
    file = file_of(url)
    if file is not None:
        return file.exists() and file_has_jobs(file)
    return not is_in_memory(url) and has_jobs(url)
