"""Jobs in the settings: which store, which executors and schedules; and a worker made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator

from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.sections import Name, Section, Settings
from ergon_framework.app.settings.stores import base_of, resolve_url, store_url, without
from ergon_framework.core.claim import checked_version
from ergon_framework.errors import JobError, SettingsError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.payload_codec_store import with_codec
from ergon_framework.jobs.scheduler import Scheduler, Schedules, ScheduleSettings
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.ports.jobstore import FullJobStore, JobAdmin
from ergon_framework.ports.settings_model import FrozenDict

if TYPE_CHECKING:
    from ergon_framework.jobs.worker import Worker

__all__ = ["SECTIONS", "Executors", "JobSetup", "job_settings", "resolve_url", "setup_of"]

Executors = Annotated[Mapping[Name, ExecutorSettings], AfterValidator(FrozenDict)]

SECTIONS = {
    "jobs": Section(JobsSettings, has_secrets=True),
    "executors": Section(Executors),
    "schedules": Section(Schedules),
}
"""What the settings file may hold for jobs."""


@dataclass(frozen=True, slots=True)
class JobSetup:
    """Everything about jobs that the settings say; paths are resolved."""

    url: str = field(repr=False)  # it may hold a password
    jobs: JobsSettings = field(default_factory=JobsSettings)
    executors: Mapping[str, ExecutorSettings] = field(default_factory=dict)
    schedules: Mapping[str, ScheduleSettings] = field(default_factory=dict)
    file: Path | None = None
    read_elsewhere: frozenset[str] = frozenset()  # variables that hold secrets of other parts
    declared: Mapping[str, Mapping[str, ScheduleSettings]] = field(default_factory=dict)
    """Schedules that an App declares, by their source, which is not the settings file."""
    own_handlers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Handlers that an App has in this process, by the executor that imports its file."""

    def kept(self) -> Self:
        """The setup itself; refused if its store is in memory and would end with this command."""
        if self.url.lower().startswith("memory:"):
            raise SettingsError(
                "a job store in memory ends with this command, and everything in it",
                remedy='use a file: url = "sqlite:///work.db"; memory is for tests of your own',
            )
        return self

    def client(self) -> JobClient:
        """A client of this store."""
        return JobClient(self.url, settings=self.jobs)

    @property
    def source(self) -> str:
        """The owner of the schedules of these settings: the application, or the file."""
        file = "settings" if self.file is None else str(self.file.resolve())
        return self.jobs.application or file

    def limit_queues(self, store: JobAdmin) -> None:
        """Bring the limits of ``[jobs.queues.NAME]`` into the store, which all workers heed."""
        for name, own in self.jobs.queues.items():
            if own.sets_limits:
                self._limit(store, name)

    def limit_again(self, store: JobAdmin) -> Iterator[str]:
        """Write the limits of queues for which the store has none any more; yields each name.

        A generator, so that the caller can do other work between two queues.
        """
        stored = {
            queue.name
            for queue in store.queues()
            if queue.max_active or queue.rate or queue.key_max_active or queue.key_rate
        }
        for name, own in self.jobs.queues.items():
            if own.has_limits and name not in stored:
                self._limit(store, name)
                yield name

    def _limit(self, store: JobAdmin, name: str) -> None:
        store.set_queue(name, **self.jobs.queues[name].limits())

    def with_limits(self, given: Mapping[str, float]) -> JobSetup:
        """A copy with other limits for the processes of every executor."""
        if not given:
            return self
        executors = {name: each.model_copy(update=given) for name, each in self.executors.items()}
        return replace(self, executors=executors)

    def with_version(self, version: str | None) -> JobSetup:
        """A copy for another version of the program; None keeps the version of the settings."""
        if version is None:
            return self
        changes = {"version": checked_version(version)}
        return replace(self, jobs=self.jobs.model_copy(update=changes))

    def worker(
        self,
        store: FullJobStore,
        *,
        queues: Sequence[str] | None = None,
        burst: bool = False,
        name: str | None = None,
        max_failed_starts: int | None = None,
    ) -> Worker:
        """A worker for these executors and schedules on an open store."""
        from ergon_framework.jobs.worker import Worker

        store = with_codec(store, self.jobs)  # schedules add jobs, too
        return Worker(
            store,
            executors=self.executors,
            settings=self.jobs,
            queues=queues,
            burst=burst,
            name=name,
            schedules=Scheduler(store, self.schedules, source=self.source, more=self.declared),
            prepare=lambda: self.limit_again(store),
            read_elsewhere=self.read_elsewhere,
            max_failed_starts=max_failed_starts,
            own_handlers=self.own_handlers,
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
    raise SettingsError(
        f"no job store: {without(settings, 'names none')}",
        remedy='name it: --store sqlite:///work.db, or url = "sqlite:///work.db" under [store] in'
        " ergon.toml; a script with App() has its jobs in ergon.db beside itself",
    )


def setup_of(settings: Settings, url: str | None = None) -> JobSetup:
    """The parts of loaded settings that concern jobs; the URL is empty when none is named.

    A store named in a settings file is relative to that file, any other to the working directory.
    """
    if url is not None and not url.strip():
        raise SettingsError(
            "the URL of the store is empty",
            remedy="name one, or leave it out for that of the settings; is a variable unset?",
        )
    jobs: JobsSettings = settings.extensions.get("jobs") or JobsSettings()
    executors: Mapping[str, ExecutorSettings] = settings.extensions.get("executors") or {}
    base = base_of(settings)
    schedules: Mapping[str, ScheduleSettings] = settings.extensions.get("schedules") or {}
    _check_payloads(schedules, jobs)
    return JobSetup(
        resolve_url(url, Path()) if url else store_url(settings, jobs.store),
        _placed_in(jobs, base),
        {name: _placed(each, base, settings.file) for name, each in executors.items()},
        schedules,
        settings.file,
        settings.variables,
    )


def _placed_in(jobs: JobsSettings, base: Path) -> JobsSettings:
    """The same settings with the folders of the archive and of payloads as absolute paths."""
    changes: dict[str, object] = {}
    if jobs.archive is not None:
        folder = _absolute(jobs.archive.folder, base)
        changes["archive"] = jobs.archive.model_copy(update={"folder": folder})
    objects = jobs.codec.objects
    if objects is not None and "://" not in objects:
        changes["codec"] = jobs.codec.model_copy(update={"objects": _absolute(objects, base)})
    return jobs.model_copy(update=changes) if changes else jobs


def _absolute(folder: str, base: Path) -> str:
    return str((base / Path(folder).expanduser()).absolute())


def _check_payloads(schedules: Mapping[str, ScheduleSettings], jobs: JobsSettings) -> None:
    """Refuse a schedule with more arguments than a client could enqueue."""
    for name, schedule in schedules.items():
        try:
            schedule.job(max_payload=jobs.max_payload)
        except JobError as error:
            raise SettingsError(
                f"schedules.{name}: {error.message}", remedy=error.remedy, details=error.details
            ) from error


def _placed(executor: ExecutorSettings, base: Path, file: Path | None) -> ExecutorSettings:
    """The executor with an absolute folder, by default that of the settings file."""
    found = {} if file is None else {"ERGON_CONFIG": str(file.absolute())}
    cwd = str((base / (executor.cwd or "")).absolute())
    return executor.model_copy(update={"cwd": cwd, "env": {**found, **executor.env}})
