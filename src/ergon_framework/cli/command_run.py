"""One run of a command: its options, its streams, who supervises it, and being stopped."""

from __future__ import annotations

import inspect
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ergon_framework.app.console import ExitCode, of_signal
from ergon_framework.app.discovery import find_project, nowhere
from ergon_framework.cli.completion import task_names
from ergon_framework.cli.output import keep_stdout, print_line, printable, show_one

if TYPE_CHECKING:
    from ergon_framework.app.processes import SupervisorLink
    from ergon_framework.app.settings import Settings

R = TypeVar("R")


@dataclass(slots=True)
class Session:
    """How this invocation was made."""

    is_debug: bool = False
    is_process: bool = False
    """Whether the process is ours, to be ended with the command."""
    arguments: Sequence[str] = ()

    def again(self, supervised: str, part: str = "") -> list[str]:
        """The command line of a worker: this one by the same interpreter, under supervision.

        Where this one is about all parts, the other is about one of them.
        """
        first, *rest = self.arguments
        if part:
            rest = [part, *(each for each in rest if each != "--all")]
        # run_command has taken it out of the arguments.
        more = ["--debug"] if self.is_debug else []
        module = [sys.executable, "-m", "ergon_framework.cli"]
        return [*module, *more, first, "--supervised", supervised, *rest]


def finite(seconds: float | None) -> float | None:
    """Refuse what is no number or has no end, which neither a minimum nor a maximum does."""
    if seconds is not None and not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a finite number")
    return seconds


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, for programs to read.")]


def _project(context: typer.Context, given: Path | None) -> Path | None:
    """What ``--config`` says; without it, the project above the working directory.

    None where the working directory has a project: settings are looked for there anyway.
    """
    # Completion finds the project by itself, and must print nothing.
    if given is not None or context.resilient_parsing or os.environ.get("ERGON_CONFIG"):
        return given
    project = find_project()
    if session_of(context).is_debug:
        place = nowhere() if project is None else f"found {project.found}"
        print(printable(f"debug: {place}"), file=sys.stderr, flush=True)
    if project is None or project.folder == Path.cwd():
        return None
    if str(project.folder) not in sys.path:
        sys.path.insert(0, str(project.folder))  # where the modules are that its settings name
    return project.place


ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_project,
        help="The settings file [default: ergon.toml in this folder or one above].",
    ),
]
PolicyPath = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="A TOML file with the policy (retries, timeouts, concurrency) of this run.",
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        envvar="ERGON_LOG_LEVEL",
        help="Log from this level on: debug, info, warning, error or critical.",
    ),
]
LogFormat = Annotated[
    str, typer.Option(envvar="ERGON_LOG_FORMAT", help="How log lines are written: text or json.")
]
TargetName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="module:Class, module:instance, or a name from [tasks].",
        autocompletion=task_names,
    ),
]


def session_of(context: typer.Context) -> Session:
    """The session of a command's context."""
    found = context.find_object(Session)
    return Session() if found is None else found


_parents: list[SupervisorLink] = []


@contextmanager
def supervised_by(parent: SupervisorLink) -> Iterator[None]:
    """Report readiness to ``parent`` inside of the block, instead of printing it."""
    _parents.append(parent)
    try:
        yield
    finally:
        _parents.pop()


@contextmanager
def observed_service(settings: Settings, source: str, *, as_json: bool) -> Iterator[None]:
    """Observe a service that announces itself; what its telemetry setup prints is not JSON."""
    from ergon_framework.app.observability import observed

    with ExitStack() as stack:
        with keep_stdout(as_json):
            stack.enter_context(observed(settings, source))
        yield


def announce(text: str, view: Mapping[str, Any], *, as_json: bool) -> None:
    """Print that it is ready, for people or programs; the stream may be closed."""
    if _parents:
        tell_parent(view)
        return
    try:
        if as_json:
            show_one(view, as_json=True)
        else:
            print_line(text)
    except OSError:
        # A reader that is gone must not end a service that is ready; whatever follows is printed to
        # nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_supervised() -> bool:
    """Whether this process reports its state to a supervisor, instead of printing it."""
    return bool(_parents)


def tell_parent(view: Mapping[str, Any]) -> None:
    """Tell the supervisor, if there is one, that this command is ready."""
    for parent in _parents:
        parent.tell_ready(" ".join(f"{name}={value}" for name, value in view.items()))


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CommandStoppedError(BaseException):
    """The command was asked to stop. Not an ErgonError, so that nothing handles it as one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code: ExitCode = of_signal(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise :class:`CommandStoppedError` at the first signal; the next one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where Python lets nobody handle signals
        return
    before = {number: signal.signal(number, _stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, _frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)  # to tidy up may take longer than somebody will wait
    raise CommandStoppedError(number)


# Options that several commands share, declared once. Typer reads the options of a command from its
# signature. A function declares a group of options and makes one value of them; a command takes
# that value as one argument, and ``expanded`` puts the options in the place of that argument.


def expanded(
    *, leaves_out: Collection[str] = (), **groups: Callable[..., Any]
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Let a command take groups of options, each as the argument that names it.

    ``leaves_out`` are options that this command does not have; their groups use the defaults.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)
        members = {name: _options_of(make, leaves_out) for name, make in groups.items()}
        options = [
            option for each in own.parameters.values() for option in members.get(each.name, (each,))
        ]

        @wraps(command)
        def called(**given: Any) -> R:
            for name, make in groups.items():
                # An option that ``leaves_out`` names is not given: its group has a default for it.
                taken = {each.name for each in members[name]} & given.keys()
                given[name] = make(**{option: given.pop(option) for option in taken})
            return command(**given)

        # Typer reads order and defaults from the signature, and the types from the annotations.
        called.__signature__ = own.replace(parameters=options)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in options}
        return called

    return decorate


def _options_of(
    make: Callable[..., Any], leaves_out: Collection[str]
) -> tuple[inspect.Parameter, ...]:
    """The options of a group, keyword-only, so that arguments without a default may follow them."""
    found = inspect.signature(make, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    return tuple(each.replace(kind=kind) for each in found if each.name not in leaves_out)
