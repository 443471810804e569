"""The options by which commands find jobs, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ergon_framework.cli import completion
from ergon_framework.cli.job_client import status_named
from ergon_framework.errors import ConfigurationError

if TYPE_CHECKING:
    from ergon_framework.core.job import JobStatus
    from ergon_framework.jobs.client import JobClient
    from ergon_framework.ports.jobstore import Search

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
TIMES = "write a duration such as 30s, 10m, 2h or 1d, or a time such as 2026-01-31T08:00:00Z"

Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        "--state",
        metavar="STATUS",
        help=(
            "Only jobs with this status: pending, active, retrying, completed, failed or "
            "cancelled; may be repeated."
        ),
        autocompletion=completion.statuses,
    ),
]
OfQueue = Annotated[
    str | None,
    typer.Option(
        "--queue", metavar="Q", help="Only jobs in this queue.", autocompletion=completion.queues
    ),
]
OfHandler = Annotated[
    str | None,
    typer.Option(
        "--handler",
        metavar="NAME",
        help="Only jobs of this handler.",
        autocompletion=completion.handlers,
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="TAG", help="Only jobs with this tag; may be repeated."),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata",
        metavar="KEY=VALUE",
        help="Only jobs with this in their metadata; may be repeated.",
    ),
]
Error = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="NAME", help="Only jobs whose last error has this code or kind."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help=(
            "Only jobs created since: a duration such as 10m, or a time such as "
            "2030-01-31T12:00:00Z."
        ),
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", metavar="TIME", help="Only jobs created before this, written like --since."
    ),
]


All = Annotated[
    bool, typer.Option("--all", help="Take everything; needed when no id and no filter is given.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Take at most this many, the newest first.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; print how many there are.")
]


class JobFilters(NamedTuple):
    """Which jobs are meant, as the options were given; all jobs where no option is."""

    status: list[str] | None = None
    queue: str | None = None
    handler: str | None = None
    tag: list[str] | None = None
    metadata: list[str] | None = None
    error: str | None = None
    since: str | None = None
    until: str | None = None

    def search(self, client: JobClient) -> Search:
        """The search that they describe."""
        from ergon_framework.jobs.finding import search_of

        # By the clock of the store, which wrote the instants that are compared.
        now = client.store.now()
        given: dict[str, Any] = {
            "status": [status_of(word) for word in self.status] if self.status else None,
            "queue": self.queue,
            "handler": self.handler,
            "tags": self.tag or None,
            "metadata": pairs(self.metadata) or None,
            "error": self.error,
            "since": None if self.since is None else instant_of(self.since, now),
            "until": None if self.until is None else instant_of(self.until, now, "--until"),
        }
        return search_of(None, given)


def job_filters(
    status: Statuses = None,
    queue: OfQueue = None,
    handler: OfHandler = None,
    tag: Tags = None,
    metadata: Metadata = None,
    error: Error = None,
    since: Since = None,
    until: Until = None,
) -> JobFilters:
    """The options that choose jobs, for :func:`~ergon_framework.cli.command_run.expanded`."""
    return JobFilters(status, queue, handler, tag, metadata, error, since, until)


def pairs(texts: Iterable[str] | None) -> dict[str, str]:
    """Metadata as the command line has them."""
    found = {}
    for text in texts or ():
        key, mark, value = text.partition("=")
        if not mark:
            raise ConfigurationError(
                f"--metadata {text!r} has no value", remedy="write --metadata KEY=VALUE"
            )
        found[key] = value
    return found


def instant_of(text: str, now: float, option: str = "--since") -> float:
    """The instant that ``10m`` (so long ago) or a time in RFC 3339 stands for."""
    from ergon_framework.core.rfc3339 import parse_rfc3339

    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if ago is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return parse_rfc3339(text.strip())
    except ValueError as error:
        raise ConfigurationError(f"{option} {text!r}: {error}", remedy=TIMES) from None


def status_of(word: str) -> JobStatus:
    """The state of a job that a word means."""
    from ergon_framework.core.job import JobStatus

    return status_named(JobStatus, word)
