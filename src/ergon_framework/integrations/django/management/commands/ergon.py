"""``manage.py ergon …``: the commands of ``ergon`` on the store of this project.

``manage.py ergon worker`` runs the jobs. Every other command is that of the same name, with the
project's store: ``manage.py ergon jobs list``, ``manage.py ergon why ID``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ergon_framework.integrations.commands import run_command
from ergon_framework.integrations.django.project import project_app


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """Runs a command of ``ergon``."""

    help = "Run jobs (worker), or any command of ergon on the store of this project."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments on, because the options of a command are its own and not Django's."""
        sys.exit(_run(argv[2:]))

    def add_arguments(self, parser: CommandParser) -> None:
        """For ``call_command("ergon", "jobs", "list")``."""
        parser.add_argument("words", nargs="*", metavar="command")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command, and raise SystemExit if it fails."""
        code = _run([*args, *options.get("words", ())])
        if code:
            sys.exit(code)


def _run(words: Sequence[str]) -> int:
    return run_command(project_app(), words, program="manage.py ergon")
