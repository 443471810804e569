"""``ergon forget``: erase what the stores of the settings tell of one subject."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ergon_framework.cli.command_run import ConfigPath, JsonFlag
from ergon_framework.cli.job_client import StoreUrl, observed_as_operator
from ergon_framework.cli.job_filters import DryRun
from ergon_framework.cli.jobs_bulk import Yes
from ergon_framework.cli.output import can_ask, printable, progress, show_one, waiting
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.app import forget as forgetting


def forget(
    tag: Annotated[
        str,
        typer.Option(
            "--tag",
            metavar="TAG",
            help="The tag that the subject's jobs have, for example customer:42.",
        ),
    ],
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Also cancel and erase the subject's jobs that still wait."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    config: ConfigPath = None,
    url: StoreUrl = None,
    as_json: JsonFlag = False,
) -> int:
    """Erase for good what all stores hold about one subject.

    A subject is a customer, for example, whose jobs have one tag. Erased are the content of jobs
    that have ended, their copies in the archive, the dead letters of their provider calls, and what
    the journal of this machine has of them. The id, state and times of each job stay.

    Jobs that wait or run are not touched but counted, and the exit code is 1: run the command again
    when they have ended. If it is killed, run it again; it goes on where it stopped.

    Example: ergon db forget --tag customer:42 --dry-run
    """
    from ergon_framework.app import forget as forgetting
    from ergon_framework.app.settings import load_settings
    from ergon_framework.ports.job_fields import tags

    settings = load_settings(config)
    (name,) = tags("tag", [tag])
    subject = forgetting.Subject(name, cancels=cancel)
    with waiting("counting"):
        found = forgetting.count(settings, subject, url)
    if found.number and not dry_run:
        if not yes:
            _confirm(found)
        with (
            observed_as_operator(config),
            progress("erased", found.jobs + found.cancelled) as move,
        ):
            found = forgetting.forget(settings, subject, url, move)
    view = found.document() | {"dry_run": dry_run}
    if as_json:
        show_one(view, as_json=True)
    else:
        left, could_not = view.pop("left"), view.pop("could_not")
        view |= {f"left {state}": number for state, number in left.items()}
        show_one(view, as_json=False)
        for each in could_not:
            print(printable(f"not erased: {each}"), file=sys.stderr, flush=True)
    return 0 if found.is_complete else 1


def _confirm(found: forgetting.Forgotten) -> None:
    """Ask whether it is to be erased; without a terminal only --yes says so."""
    what = f"{found.jobs + found.cancelled:,} job(s) and {found.archived:,} archived one(s)"
    if not can_ask():
        raise ConfigurationError(
            f"nobody was asked whether to erase {what} for good",
            remedy="give --yes if that is what you want, or --dry-run to see how much there is",
        )
    if not typer.confirm(f"erase {what} for good?", err=True):
        raise ConfigurationError("nothing was erased", remedy="--dry-run only counts")
