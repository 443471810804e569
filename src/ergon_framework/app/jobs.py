"""Jobs in the settings: which store, which executors and schedules; and a worker made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator

from ergon_framework.app.sections import Name, Settings
from ergon_framework.app.settings import load_settings, revealed
from ergon_framework.errors import SettingsError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.requests import Store
from ergon_framework.jobs.schedules import Scheduler, Schedules, ScheduleSettings
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.ports.document import FrozenDict
from ergon_framework.ports.jobstore import JobDesk

if TYPE_CHECKING:
    from ergon_framework.jobs.worker import Worker

Executors = Annotated[Mapping[Name, ExecutorSettings], AfterValidator(FrozenDict)]

SECTIONS: dict[str, tuple[Any, bool]] = {
    "jobs": (JobsSettings, True),
    "executors": (Executors, False),
    "schedules": (Schedules, False),
}
"""What the settings file may hold for jobs, and whether there may be secrets in it."""

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class JobSetup:
    """Everything about jobs that the settings say; paths are resolved."""

    url: str = field(repr=False)  # it may hold a password
    jobs: JobsSettings = field(default_factory=JobsSettings)
    executors: Mapping[str, ExecutorSettings] = field(default_factory=dict)
    schedules: Mapping[str, ScheduleSettings] = field(default_factory=dict)
    file: Path | None = None

    def kept(self) -> Self:
        """The same, refused when the store would end with this very command."""
        if self.url.lower().startswith("memory:"):
            raise SettingsError(
                "a job store in memory ends with this command, and everything in it",
                remedy='use a file: url = "sqlite:///work.db"; memory is for tests of your own',
            )
        return self

    def client(self) -> JobClient:
        """A client of this store."""
        return JobClient(self.url, settings=self.jobs)

    def limit_queues(self, store: JobDesk) -> None:
        """Bring the limits of ``[jobs.queues.NAME]`` into the store, which all workers heed."""
        for name, limits in self.jobs.queues.items():
            store.set_queue(
                name, max_active=limits.max_active, rate=limits.rate, burst=limits.burst
            )

    def worker(
        self,
        store: Store,
        *,
        queues: Sequence[str] | None = None,
        burst: bool = False,
        name: str | None = None,
    ) -> Worker:
        """A worker for these executors and schedules on an open store."""
        from ergon_framework.jobs.worker import Worker

        source = "settings" if self.file is None else str(self.file.resolve())
        return Worker(
            store,
            executors=self.executors,
            settings=self.jobs,
            queues=queues,
            burst=burst,
            name=name,
            schedules=Scheduler(store, self.schedules, source=source),
        )


def job_settings(
    config: str | Path | None = None,
    url: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> JobSetup:
    """What the settings say about jobs; ``url`` replaces the store they name."""
    settings = load_settings(config, environ)
    setup = setup_of(settings, url)
    if setup.url:
        return setup
    where = "there is no settings file" if settings.file is None else f"{settings.file} names none"
    raise SettingsError(
        f"no job store: {where}",
        remedy='write url = "sqlite:///work.db" under [store] in ergon.toml, or give --url',
    )


def setup_of(settings: Settings, url: str | None = None) -> JobSetup:
    """The parts of loaded settings that concern jobs; the URL is empty when none is named.

    A store named in a settings file is relative to that file, any other to the working directory.
    """
    jobs: JobsSettings = settings.extensions.get("jobs") or JobsSettings()
    executors: Mapping[str, ExecutorSettings] = settings.extensions.get("executors") or {}
    base = Path() if settings.file is None else settings.file.parent
    named = revealed(jobs.store) or revealed(settings.store.url) or ""
    return JobSetup(
        resolve_url(url, Path()) if url else resolve_url(named, base),
        jobs,
        {name: _placed(each, base) for name, each in executors.items()},
        settings.extensions.get("schedules") or {},
        settings.file,
    )


def resolve_url(url: str, base: Path) -> str:
    """The same URL with the path of an SQLite file made absolute."""
    if not url.lower().startswith(_SQLITE):
        return url
    path = url[len(_SQLITE) :]
    if not path or path.startswith(("/", ":")):
        return url
    return f"{_SQLITE}{(base / path).absolute()}"


def _placed(executor: ExecutorSettings, base: Path) -> ExecutorSettings:
    """The same executor with its working directory made absolute; by default that of the file."""
    return executor.model_copy(update={"cwd": str((base / (executor.cwd or "")).absolute())})
