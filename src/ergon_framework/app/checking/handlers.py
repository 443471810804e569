"""``ergon check`` for Python executors: whether the registry that ``--app`` names can be loaded.

It is loaded as the executor would: by its own Python, in its own folder, in a process of its own.
A provider that no task uses may be theirs alone, and is then looked for in the same way.
Programs in other languages are left alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ergon_framework.errors import WiringError
from ergon_framework.jobs.settings import ExecutorSettings

PATIENCE = 60.0
"""Seconds for importing the handlers."""
LONGEST = 500
"""Characters of what a program said last."""
_MODULES = (["ergon_framework.executor"], ["ergon_framework.cli", "executor"])
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
from ergon_framework.app.providers import provider_maker
from ergon_framework.app.settings import load_settings
provider_maker(sys.argv[1], load_settings()).check()
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
            f"its handlers are not imported within {PATIENCE:g} s", "import no more than handlers"
        ) from error
    if done.returncode == _REFUSED:
        raise _refusal(*json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        because = "".join(f": {line.strip()[:LONGEST]}" for line in told)
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
        timeout=PATIENCE,
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
