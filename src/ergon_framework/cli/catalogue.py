"""Which commands there are, in groups as ``ergon --help`` shows them, and where each one is.

The table says enough for the help and for completion: a command is imported when it is run. To
import and prepare all of them takes longer than most commands do.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

MAX_VISIBLE = 20
"""How many commands ``ergon --help`` may list."""


class CommandEntry(NamedTuple):
    """A command: its name, its one-line help, and where it is (``module:name``, in this package).

    The place is a function, or a ``typer.Typer`` for a command with subcommands.
    """

    name: str
    help: str
    home: str


GROUPS: dict[str, tuple[CommandEntry, ...]] = {
    "Run": (
        CommandEntry("run", "Run an App, a task, or all of the settings.", "run:run"),
        CommandEntry("worker", "Run jobs with the executors of the settings.", "worker:worker"),
        CommandEntry("serve", "Serve the console, JSON API and metrics.", "serve:serve"),
        CommandEntry("tasks", "List tasks, try one transaction, probe a run.", "project:tasks_app"),
        CommandEntry("new", "Make a project that runs.", "project:new"),
        CommandEntry("check", "Check the settings and say what would run.", "project:check"),
    ),
    "Jobs": (
        CommandEntry("enqueue", "Enqueue a job and print its id.", "enqueue:enqueue"),
        CommandEntry("jobs", "List jobs and workers; show, cancel or retry one.", "jobs:app"),
        CommandEntry("flows", "List flows; show, cancel, retry or signal one.", "flows:app"),
        CommandEntry("queues", "List queues; pause, resume, limit or pin one.", "queues:app"),
        CommandEntry("schedules", "List schedules; pause, resume or run one.", "schedules:app"),
        CommandEntry("dlq", "List, requeue or purge dead letters.", "dlq:app"),
    ),
    "Facts": (
        CommandEntry("boundary", "Run and inspect a zone; send or read facts.", "boundary:app"),
    ),
    "Providers": (
        CommandEntry("providers", "Show health; open or close a circuit.", "providers:app"),
    ),
    "Inspect": (
        CommandEntry("why", "Explain a job, transaction, fact or call.", "why:why"),
        CommandEntry("top", "Watch queues and workers.", "top:top"),
        CommandEntry("tail", "Follow what happens in all processes.", "tail:tail"),
        CommandEntry(
            "trace",
            "Show a trace as a tree, or list the latest.",
            "trace:trace",
        ),
    ),
    "Maintain": (
        CommandEntry("doctor", "Check this machine and the settings' servers.", "project:doctor"),
        CommandEntry("db", "Upgrade tables; move, export or import a store.", "db:app"),
    ),
}
"""What people see, in the order in which they see it."""

ALIASES = (
    CommandEntry("process", "ergon tasks process", "project:process"),
    CommandEntry("live", "ergon tasks live", "project:live"),
    CommandEntry("notices", "ergon tasks notices", "project:notices"),
    CommandEntry("workers", "ergon jobs workers", "worker:workers"),
    CommandEntry("audit", "ergon jobs audit", "jobs:audit"),
    CommandEntry("executor", "ergon jobs executor", "worker:executor"),
    CommandEntry("conform", "ergon jobs conform", "worker:conform"),
    CommandEntry("export", "ergon db export", "db:export"),
    CommandEntry("import", "ergon db import", "db:import_"),
    CommandEntry("forget", "ergon db forget", "forget:forget"),
    CommandEntry("move", "ergon db move", "move:move"),
)
"""Short names of commands in a group, most from before they moved there; they work for ever and
are not listed.

Their help here is the name under which the command is listed now.
"""

_ENTRIES = {each.name: each for group in (*GROUPS.values(), ALIASES) for each in group}
_HIDDEN = frozenset(each.name for each in ALIASES)


class CommandTable(MutableMapping[str, Any]):
    """The commands by name; one is imported and prepared when it is asked for."""

    def __init__(self) -> None:
        self._prepared: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._prepared:
            self._prepared[name] = _prepared(_ENTRIES[name])
        return self._prepared[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._prepared[name] = command

    def __delitem__(self, name: str) -> None:
        del self._prepared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_ENTRIES)

    def __len__(self) -> int:
        return len(_ENTRIES)

    def __contains__(self, name: object) -> bool:
        return name in _ENTRIES


def _prepared(entry: CommandEntry) -> Any:
    module, _, name = entry.home.partition(":")
    found = getattr(import_module(f"ergon_framework.cli.{module}"), name)
    root = typer.Typer(add_completion=False, rich_markup_mode=None)
    root.callback()(_nothing)  # with it even one command makes a group
    if isinstance(found, typer.Typer):
        _tell_whole_lines(found)
        root.add_typer(found, name=entry.name)
    else:
        root.command(entry.name, hidden=entry.name in _HIDDEN)(found)
    group: Any = typer.main.get_command(root)
    return group.commands[entry.name]


class Subcommands(TyperGroup):
    """Commands below a command; in a narrow terminal their help is wrapped, and never cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands that are not hidden, each with the whole of its one line."""
        listed = [self.commands[name] for name in self.list_commands(ctx)]
        lines = [(each.name, each.get_short_help_str(_WHOLE)) for each in listed if not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


_WHOLE = 1000
"""Characters that no line of help has."""


def _tell_whole_lines(group: typer.Typer) -> None:
    group.info.cls = Subcommands
    for each in group.registered_groups:
        if each.typer_instance is not None:
            _tell_whole_lines(each.typer_instance)


def _leave_as_given(command: Any) -> None:
    """Turn off the conversion of options and arguments: Typer imports pydantic for it, and a shell
    that completes a word waits for that.
    """
    of_help = command.get_help_option

    def help_option(ctx: Any) -> Any:
        return _as_it_is(of_help(ctx))

    command.get_help_option = help_option
    for parameter in command.params:
        _as_it_is(parameter)
    # The table of all commands is left out: its values are imported one by one when they are asked
    # for, and get_command prepares the one that is meant.
    below = getattr(command, "commands", {})
    for each in () if isinstance(below, CommandTable) else below.values():
        _leave_as_given(each)


def _as_it_is(parameter: Any) -> Any:
    if parameter is not None:
        parameter.process_value = lambda _ctx, value: value
    return parameter


def _nothing() -> None:
    """The callback of a program that has no options of its own."""


class CommandGroups(TyperGroup):
    """The program ``ergon``: its help and its completion need no command to be imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = CommandTable()
        self._only_lists = False
        self._is_completing = False

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the words of a line. While a shell completes one, none of them is converted."""
        self._is_completing = bool(options.get("resilient_parsing"))
        if self._is_completing:
            _leave_as_given(self)
        return super().make_context(*args, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name, also those that are hidden."""
        return list(_ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; while names are completed, only its name and help."""
        # Click asks for each command to offer its name: imported for that, all of them would be.
        if self._only_lists and cmd_name in _ENTRIES:
            entry = _ENTRIES[cmd_name]
            return TyperCommand(entry.name, help=entry.help, hidden=entry.name in _HIDDEN)
        command = super().get_command(ctx, cmd_name)
        if self._is_completing and command is not None:
            _leave_as_given(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in their groups, all in one column."""
        widest = max(len(each.name) for each in _ENTRIES.values() if each.name not in _HIDDEN)
        for title, entries in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(each.name.ljust(widest), each.help) for each in entries])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The names that begin so, with their help."""
        self._only_lists = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._only_lists = False
