"""``App``: handlers of all four kinds of work, with the store that they share, in one object.

::

    from ergon_framework import App

    app = App()


    @app.job(attempts=5, timeout=30)
    def resize(path: str, *, width: int = 100) -> str: ...


    @app.schedule("*/15 * * * *", timezone="Europe/Berlin")
    def sweep() -> None: ...


    if __name__ == "__main__":
        resize.enqueue("a.png", width=3)
        app.run()

Handlers of jobs run in processes of their own, which load the script anew under its own name: what
stands under ``if __name__ == "__main__":`` is not run there. Everything else runs in the process
that calls :meth:`App.run`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from ergon_framework.app.app_arguments import (
    MAX_NAME,
    check_decorated,
    check_places,
    check_provider_words,
    check_schedule_words,
    check_values,
    check_zone_name,
    checked_name,
    checked_queues,
    refuse_method,
)
from ergon_framework.app.job_handlers import JobHandler
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ConfigurationError, ErgonError, WiringError
from ergon_framework.executor import Registry
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.job_options import HandlerOptions
from ergon_framework.ports.lifespan import (
    SHUTDOWN_TIMEOUT,
    STARTUP_TIMEOUT,
    Dependencies,
    DependencyScope,
    LifespanOptions,
)
from ergon_framework.ports.middleware import MiddlewareStack
from ergon_framework.ports.usage import shows

if TYPE_CHECKING:
    import ergon_framework.app.jobs as app_jobs
    import ergon_framework.app.run_app as app_run
    import ergon_framework.app.settings as app_settings
    import ergon_framework.connector.boundary as zone_connector
    import ergon_framework.jobs.async_client as async_job_client
    import ergon_framework.jobs.client as job_client
    import ergon_framework.jobs.flows as job_flows
    import ergon_framework.jobs.scheduler as job_scheduler
    import ergon_framework.jobs.worker as job_worker
    import ergon_framework.providers.functions as provider_functions
    import ergon_framework.task.functions as task_functions
    import ergon_framework.task.options as task_options
    from ergon_framework.app.run_app import AppPart, ConsumerPart, WorkerPart
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.jobs.flows import FlowClients
    from ergon_framework.task.mixins.policies import ConsumerPolicy
else:
    app_jobs = LateModule("ergon_framework.app.jobs")
    app_run = LateModule("ergon_framework.app.run_app")
    app_settings = LateModule("ergon_framework.app.settings")
    zone_connector = LateModule("ergon_framework.connector.boundary")
    async_job_client = LateModule("ergon_framework.jobs.async_client")
    job_client = LateModule("ergon_framework.jobs.client")
    job_flows = LateModule("ergon_framework.jobs.flows")
    job_scheduler = LateModule("ergon_framework.jobs.scheduler")
    job_worker = LateModule("ergon_framework.jobs.worker")
    provider_functions = LateModule("ergon_framework.providers.functions")
    task_functions = LateModule("ergon_framework.task.functions")
    task_options = LateModule("ergon_framework.task.options")

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).absolute().parents[1]
"""Where Ergon is installed."""
EXECUTOR = "python"
"""The executor of a script without a name, and of one whose settings define executors."""
LIMIT_SETTINGS = {
    "max_jobs_per_process": "max_jobs",
    "max_memory_per_process": "max_memory",
    "max_process_age": "max_age",
}
"""The names that ``run`` gives to those settings of an executor that say when a process is
replaced.
"""
STARTUP_GRACE = 10.0
"""Seconds that an executor has to start, beside what its lifespans and hooks may take. If one of
those hangs, the process ends by itself, and no job loses a delivery.
"""
SHUTDOWN_GRACE = 2.0
"""Seconds that an executor has to leave, beside what its lifespans and hooks may take. One that
ends by itself says which of them hangs.
"""


class App:
    """Handlers of jobs, consumers, provider calls and zones, with the store that they share.

    The store is the one given here, or that of the settings, or else ``ergon.db`` beside the
    script. The settings are the file given here, or the one that ``ERGON_CONFIG`` names, or else
    ``ergon.toml`` beside the script. The store is opened at the first use.

    Scripts may share a store: a job names the script as its executor, by ``name`` or else by the
    file that makes the App, and waits for a worker of this script. Where the settings define
    executors, jobs name none, and the settings say who runs them; unless ``name`` is given.
    """

    @shows('App(), App("ergon.toml")', 'App("postgresql://host/name")')
    def __init__(
        self,
        source: str | os.PathLike[str] | None = None,
        *,
        url: str | None = None,
        config: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> None:
        """``source`` is the URL of a store or the path of a settings file; so may be named."""
        check_places(source=source, url=url, config=config)
        is_file = isinstance(source, os.PathLike) or str(source).endswith(".toml")
        if source is not None and (config if is_file else url) is not None:
            from ergon_framework.redaction import redacted_text

            given, other = redacted_text(str(source)), config if is_file else "another URL"
            raise ConfigurationError(
                f"an App was given {given} and {other}",
                remedy="name one of them",
            )
        self._url = url if is_file or source is None else str(source)
        place = source if is_file else config
        self._config = None if place is None else Path(place)
        self._globals, self._maker = _caller(self)
        file = self._file = _file_in(self._globals)
        _refuse_name_of_python(self._globals, file)
        self._home = _outside_of_package(self._find_home())
        self._given_name = None if name is None else checked_name(name)
        self._name = self._given_name or _name_of(file)
        self._lock = threading.RLock()
        self._blocks = 0  # ``with`` blocks that have not ended
        self._settings: app_settings.Settings | None = None
        self._setup: app_jobs.JobSetup | None = None
        self._client: job_client.JobClient | None = None
        self._async_client: async_job_client.AsyncJobClient | None = None
        self._schedules: dict[str, tuple[JobHandler[Any, Any], dict[str, Any]]] = {}
        self._middleware = MiddlewareStack()
        self._dependencies = Dependencies()
        self.registry = Registry(dependencies=self._dependencies, middleware=self._middleware)
        self._consumers: dict[str, task_functions.FunctionConsumer[..., Any]] = {}
        self._providers: list[provider_functions.Provider] = []
        self._provider_options: dict[str, Mapping[str, object]] = {}
        self._zones: dict[str, zone_connector.Zone] = {}
        renew_after_fork(self)

    def renew(self) -> None:
        """In a process that was just forked: a thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    # ---- jobs ----

    @overload
    def job(self, name: Callable[P, T], /) -> JobHandler[P, T]: ...
    @overload
    def job(
        self,
        name: str | None = None,
        *,
        heartbeat: float | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Callable[P, T]], JobHandler[P, T]]: ...
    @overload
    def job(
        self,
        name: str | None = None,
        *,
        batch: int,
        linger: float | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Callable[[list[A]], Any]], JobHandler[[A], Any]]: ...
    @shows('@app.job("resize", attempts=5)')
    def job(self, name: Any = None, **options: Any) -> Any:
        """Make a function the handler of jobs, under the given name or its own.

        The function can be called as before; options are those of all its jobs. With ``batch`` it
        takes a list: each job has one argument, and one call gets those of up to so many jobs. It
        returns None, or a list with a result for each; an exception in that list is the failure of
        its job. With ``heartbeat`` an attempt that calls ``job.progress()`` less often than every
        so many seconds is ended as a timeout.
        """
        if callable(name):
            return self._add(name, None, options)
        check_decorated(name, "job", "resize")
        return lambda function: self._add(function, name, options)

    @shows('@app.schedule("*/15 * * * *", name="sweep")', '@app.schedule(every="15m")')
    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        every: float | str | timedelta | None = None,
        timezone: str = "UTC",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        misfire: str = "once",
        overlap: bool = True,
        jitter: float = 0.0,
        ends_at: float | str | datetime | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Callable[P, T] | JobHandler[P, T]], JobHandler[P, T]]:
        """Enqueue a job of this function by the clock: by a line of cron, or ``every`` so often.

        ``every`` is whole seconds, a text such as ``1h30m``, or a ``timedelta``.
        ``misfire`` says what becomes of fires that no worker was there for: ``once``, ``skip`` or
        ``all``. Without ``overlap`` nothing is enqueued while the job of an earlier fire is not
        over. ``jitter`` makes each job due up to so many seconds after its fire, and after
        ``ends_at`` nothing fires. A worker of this App writes its schedules into the store, and
        drops those that the App no longer declares.
        """
        given: Any = cron
        if callable(given):  # the decorator was written without its parentheses
            named = getattr(given, "__name__", "sweep")
            raise WiringError(
                "a schedule says when: a line of cron, or every= and seconds",
                remedy=f'write @app.schedule("*/15 * * * *") above def {named}',
            )

        check_schedule_words(options)

        def declare(function: Callable[P, T] | JobHandler[P, T]) -> JobHandler[P, T]:
            is_new = not isinstance(function, JobHandler)
            if isinstance(function, JobHandler):
                handler = function.options(**options) if options else function
            else:
                handler = self._add(function, None, options)
            fields = {
                "cron": cron,
                "every": every,
                "zone": timezone,
                "args": args,
                "kwargs": {} if kwargs is None else kwargs,
                "misfire": misfire,
                "overlap": overlap,
                "jitter": jitter,
                "ends_at": ends_at,
            }
            try:
                self._add_schedule(handler, name, fields)
            except ErgonError:
                if is_new:  # it must not stand in the way of the one that replaces it
                    self.registry.remove(handler.name)
                raise
            return handler

        return declare

    def _add_schedule(
        self, handler: JobHandler[Any, Any], name: str | None, fields: Mapping[str, Any]
    ) -> None:
        checked = handler.checked_schedule(fields)
        own = handler.schedule_name(name)
        if own in self._schedules:
            raise WiringError(
                f"there are two schedules named {own!r}", remedy="give one of them a name="
            )
        self._schedules[own] = (handler, checked)

    @shows("app.chain(fetch.step(url), resize.options(queue='slow').step(80))")
    def chain(
        self,
        *parts: job_flows.FlowPart | JobHandler[Any, Any],
        name: str = "",
        on_failure: str | None = None,
    ) -> job_flows.Chain:
        """Steps one after another: each waits for the one before it, and gets its result.

        A part is ``handler.step(…)``, a chain or a group. ``on_failure`` is what becomes of the
        rest when a step fails: ``cancel``, ``continue`` or ``hold``. Nothing is stored before
        ``enqueue`` of the chain.
        """
        from ergon_framework.jobs.flows import Chain

        return Chain(self._flow_clients(), parts, name, on_failure)

    @shows("app.group([resize.step(80), resize.step(160)], then=publish.step())")
    def group(
        self,
        parts: Iterable[job_flows.FlowPart | JobHandler[Any, Any]],
        *,
        then: job_flows.FlowPart | JobHandler[Any, Any] | None = None,
        name: str = "",
        on_failure: str | None = None,
    ) -> job_flows.Group:
        """Steps side by side; ``then`` follows when all have ended, and gets their results."""
        from ergon_framework.jobs.flows import Group

        return Group(self._flow_clients(), parts, then, name, on_failure)

    @shows('app.wait_for_signal("approved", timeout=3600)')
    def wait_for_signal(self, name: str, *, timeout: float | None = None) -> job_flows.SignalStep:
        """A step that waits until somebody calls ``flow.signal(name, value)``.

        ``timeout``: seconds, from when the step is reached, after which it fails.
        """
        from ergon_framework.jobs.flows import signal_step

        return signal_step(name, timeout)

    def _flow_clients(self) -> FlowClients:
        from ergon_framework.jobs.flows import FlowClients

        return FlowClients(lambda: self.client, lambda: self.async_client)

    def on_startup(self, hook: Callable[[], Any]) -> Callable[[], Any]:
        """Run a function in each executor process before its first job."""
        return self.registry.on_startup(hook)

    def on_shutdown(self, hook: Callable[[], Any]) -> Callable[[], Any]:
        """Run a function in each executor process after its last job."""
        return self.registry.on_shutdown(hook)

    def _add(
        self, function: Callable[P, T], name: str | None, options: Mapping[str, Any]
    ) -> JobHandler[P, T]:
        refuse_method(function, "job")
        known = set(self.registry.names)
        self.registry.add(function, name, **cast("HandlerOptions", options))
        # The registry chooses the name of a function that is given none.
        (added,) = set(self.registry.names) - known
        return JobHandler(self, added, function, self.registry.options[added])

    # ---- messages ----

    @shows('@app.consumer(connector, name="orders")')
    def consumer(
        self,
        source: Any,
        /,
        *,
        name: str | None = None,
        **options: Unpack[task_options.ConsumerOptions],
    ) -> task_functions.ConsumerDecorator:
        """Make a function the handler of what a connector delivers.

        ``source`` is a connector, the name of one in the settings, or the URL of one, such as
        ``redis://host/0?stream=orders&group=billing``. The first parameter of the function is the
        payload, converted to its type; a payload that does not fit is a business
        failure. See :mod:`ergon_framework.task.functions`.
        """
        from ergon_framework.connector.broker.registry import check_url
        from ergon_framework.task.functions import FunctionConsumer, check_source

        check_source(source)
        check_url(source)
        if source is None:
            raise WiringError(
                "a consumer of an App was given None to consume from; is a variable unset?",
                remedy="pass a connector, or the name or the URL of one",
            )

        def declare(function: Callable[P, T], /) -> task_functions.FunctionConsumer[P, T]:
            refuse_method(function, "consumer")
            made = FunctionConsumer(
                function,
                source,
                name=name,
                options=options,
                middleware=self._middleware,
                dependencies=self._dependencies,
                find_policy=self._policy_named,
            )
            if made.name in self._consumers:
                raise WiringError(
                    f"there are two consumers named {made.name!r}", remedy="give one a name="
                )
            self._consumers[made.name] = made
            return made

        return declare

    def _policy_named(self, consumer: str, name: str) -> ConsumerPolicy:
        """The policy ``[policies.NAME]`` of the settings, for a consumer that names it."""
        from ergon_framework.app.run_app import named_policy

        return named_policy(consumer, name, self.settings)

    # ---- provider calls ----

    @shows('rates = app.provider("rates", timeout=5)')
    def provider(
        self, name: str, **options: Unpack[provider_functions.ShortProviderOptions]
    ) -> provider_functions.Provider:
        """A service of somebody else, whose calls are guarded and recorded in this App's store.

        The options are those of :class:`ergon_framework.Provider`. What they leave out, the table
        ``[providers.NAME]`` of the settings may say; it is read at the first call.
        """
        from ergon_framework.providers.functions import Provider

        check_provider_words(options)
        given = dict(options)
        self._refuse_other_options(name, given)
        options.setdefault("store", partial(self._call_store, name))
        made = Provider(
            name,
            middleware=self._middleware,
            dependencies=self._dependencies,
            settings=partial(self._provider_settings, name),
            **options,
        )
        # Last: options that are refused must not stand in the way of those that replace them.
        self._provider_options[name] = given
        self._providers.append(made)
        self.registry.openings.append(made.open_early)
        return made

    def _refuse_other_options(self, name: str, given: Mapping[str, object]) -> None:
        """Refuse the name of another provider: both would share its circuits and its quota.

        Whichever were called first would decide how the calls of the other are counted.
        """
        before = self._provider_options.get(name, given)
        differing = {
            each
            for each in {**before, **given}
            if before is not given and before.get(each) != given.get(each)
        }
        if differing:
            raise WiringError(
                f"the provider {name!r} is declared twice in this App, with other options:"
                f" {', '.join(sorted(differing))}",
                remedy="declare it once and import it where it is called, or give this one a name"
                " of its own; one call differs with .options()",
            )

    def _provider_settings(self, name: str) -> dict[str, Any]:
        """What the settings say about the calls of a provider, asked at the first of them."""
        from ergon_framework.app.providers import script_arguments

        return script_arguments(name, self.settings)

    def _call_store(self, name: str) -> str | None:
        """Where the calls of a provider are kept, asked at the first of them."""
        from ergon_framework.app.providers import script_store
        from ergon_framework.app.settings.stores import keeps_calls

        url = script_store(name, self.settings)
        if url and not keeps_calls(url):
            raise ConfigurationError(
                "the store of this App keeps no provider calls",
                remedy='name one that does: write store = "sqlite:///calls.db" under [providers],'
                " or pass store= to app.provider",
            )
        return url or None

    # ---- facts ----

    @shows('app.zone("plant"), and say where it is kept under [zones.plant] of the settings')
    def zone(self, name: str) -> zone_connector.Zone:
        """A zone by its name: facts are published into it and read from it.

        The zone is that of the settings. Without one it lives in ``ergon.zones`` beside this App's
        store, or on the server that is its store.
        """
        given: object = name  # what cannot be hashed is no name either
        check_zone_name(given)
        with self._lock:
            found = self._zones.get(name) if isinstance(given, str) else None
            if found is None:
                from ergon_framework.connector.boundary import Zone

                found = self._zones[name] = Zone(name, partial(self._zone_settings, name))
                self.registry.openings.append(found.open_early)
            return found

    def _zone_settings(self, name: str) -> ZoneSettings:
        """How a zone is kept, asked at its first use."""
        from ergon_framework.app.settings.stores import store_url
        from ergon_framework.app.zones import script_zone

        url = store_url(self.settings) or None
        return script_zone(self.settings, name, home=self._home, url=url).settings

    # ---- around handlers ----

    @overload
    def middleware(self, function: F, /) -> F: ...
    @overload
    def middleware(self, /, *kinds: str, only: str | None = None) -> Callable[[F], F]: ...
    def middleware(self, /, *kinds: Any, only: str | None = None) -> Any:
        """Surround handlers with a function: all of them, or those of the kinds that are named.

        Kinds are ``consumer``, ``job`` and ``provider``; ``only`` restricts it to ``sync`` or
        ``async`` handlers. See :mod:`ergon_framework.ports.middleware` for the forms it may have.
        """
        if len(kinds) == 1 and not isinstance(kinds[0], str):
            return self._middleware.add(kinds[0], only=only)
        return lambda function: self._middleware.add(function, kinds, only)

    @overload
    def lifespan(self, function: F, /) -> F: ...
    @overload
    def lifespan(
        self, function: None = None, /, **options: Unpack[LifespanOptions]
    ) -> Callable[[F], F]: ...
    def lifespan(self, function: Any = None, /, **options: Any) -> Any:
        """Open something before the first handler runs in a process, and close it after the last.

        The function yields once; what it yields is injected into handlers by type. It has
        ``startup_timeout`` seconds (60) until its yield and ``shutdown_timeout`` (10) after it;
        None sets no limit. See :mod:`ergon_framework.ports.lifespan`.
        """
        if function is None:
            return partial(self._dependencies.add, **options)
        return self._dependencies.add(function, **options)

    # ---- the store ----

    @property
    def settings(self) -> app_settings.Settings:
        """The settings of this script, with the store that it uses."""
        with self._lock:
            if self._settings is None:
                self._settings = self._loaded()
            return self._settings

    @property
    def setup(self) -> app_jobs.JobSetup:
        """Store, executors and schedules of this script."""
        with self._lock:
            if self._setup is None:
                from ergon_framework.app.jobs import setup_of

                self._setup = setup_of(self.settings)
            return self._setup

    @property
    def executor(self) -> str:
        """The executor that the jobs of this script name; empty where they name none."""
        is_left_to_settings = bool(self.setup.executors) and self._given_name is None
        return "" if is_left_to_settings else self._name

    @property
    def client(self) -> job_client.JobClient:
        """The client of this script's store, for everything that is not about one handler."""
        with self._lock:
            if self._client is None:
                self._client = self.setup.client()
            return self._client

    @property
    def async_client(self) -> async_job_client.AsyncJobClient:
        """The client for event loops; it shares the store of :attr:`client`."""
        with self._lock:
            if self._async_client is None:
                from ergon_framework.jobs.async_client import AsyncJobClient

                client = self.client
                self._async_client = AsyncJobClient(
                    self.setup.url, settings=client.settings, store=client.store
                )
            return self._async_client

    def close(self) -> None:
        """Close the stores, for all users in this process. The next use opens them again."""
        with self._lock:
            self._close_clients()
            providers, zones = [*self._providers], [*self._zones.values()]
        # Without the lock: one that another thread is opening, which is waited for, asks for the
        # settings.
        for provider in providers:
            provider.close()
        for zone in zones:
            zone.close()

    def _close_clients(self) -> None:
        """Close the clients of jobs, under the lock: whoever asks for one then gets another.

        Providers and zones are opened again by their next use, and clients are not.
        """
        client, self._client = self._client, None
        async_client, self._async_client = self._async_client, None
        if async_client is not None:
            async_client.shut()
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        """Use it in a block: the last of all blocks that end lets go of the stores.

        Two servers of one process may share an App, and one of them ends first.
        """
        with self._lock:
            self._blocks += 1
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            self._close_clients()  # before another thread enters, and asks for one
        self.close()

    # ---- running ----

    def run(
        self,
        *,
        burst: bool = False,
        queues: str | Sequence[str] | None = None,
        processes: int | None = None,
        max_in_flight: int | None = None,
        max_jobs_per_process: int | None = None,
        max_memory_per_process: int | None = None,
        max_process_age: float | None = None,
    ) -> app_run.AppReport:
        """Run everything that was declared until SIGTERM or SIGINT; a second signal stops at once.

        With ``burst`` consumers run until their source has nothing more, and then jobs until
        nothing is due; a source that is away for a minute is a ``ConnectorError``. All other
        arguments are about jobs, and all but ``queues`` about this script's own executor. A process
        of it is replaced after so many jobs, or when it has so many bytes of memory, or after so
        many seconds.
        """
        from ergon_framework.app.observability import observed, show_executors
        from ergon_framework.app.run_app import AppReport, AppRun, ZonePart, shared_lifespans
        from ergon_framework.core.process_restart import RestartRule
        from ergon_framework.engine.time_limit import open_early
        from ergon_framework.executor.loading import refuse_while_loading

        refuse_while_loading("starts a worker")
        self._dependencies.check()
        served = checked_queues("run", queues)
        limits: dict[str, float | None] = {
            "max_jobs_per_process": max_jobs_per_process,
            "max_memory_per_process": max_memory_per_process,
            "max_process_age": max_process_age,
        }
        check_values("run", burst=burst, processes=processes, max_in_flight=max_in_flight, **limits)
        own: dict[str, float | None] = {"pool_size": processes, "max_in_flight": max_in_flight}
        own |= {LIMIT_SETTINGS[name]: value for name, value in limits.items()}
        given = {name: value for name, value in own.items() if value is not None}
        show_executors()
        with ExitStack() as stack:
            # Handlers of jobs run in executors, which open the lifespans for themselves.
            scope = None
            if self._consumers:
                scope = stack.enter_context(shared_lifespans(self._dependencies))
                # Making the tables of a new store takes a second, and more on a busy machine. The
                # first message has its own timeout, and must not pay for that.
                stop = open_early([provider.open_early for provider in self._providers])
                stack.callback(stop)
            consumers = self._consumer_parts(scope, burst=burst)
            worker = None
            if self.registry.names or self.setup.executors or not (consumers or self._zones):
                worker = self._worker_part(given, served, burst=burst)
            workers: list[AppPart] = [] if worker is None else [worker]
            stages: list[list[AppPart]] = [[*consumers, *workers]]
            if burst:
                stages = [[*consumers], workers]
            services = [ZonePart(each) for each in self._zones.values()]
            stack.enter_context(observed(self.settings, f"app {self._name or 'script'}"))
            AppRun(stages, services, rule=None if burst else RestartRule()).run()
        reports = {each.name: each.report for each in consumers if each.report is not None}
        return AppReport(AppReport().jobs if worker is None else worker.report, reports)

    def _worker_part(
        self, given: Mapping[str, float], queues: Sequence[str] | None, *, burst: bool
    ) -> WorkerPart:
        """The worker of a run; ``given`` are settings of this script's own executor."""
        from ergon_framework.app.run_app import WorkerPart
        from ergon_framework.core.process_restart import MAX_FAILED_STARTS

        setup, store = self.worker_setup(given), self.client.store
        setup.limit_queues(store)
        self._warn_of_earlier_jobs()
        return WorkerPart(
            lambda: setup.worker(
                store, queues=queues, burst=burst, max_failed_starts=MAX_FAILED_STARTS
            )
        )

    def _warn_of_earlier_jobs(self) -> None:
        """Warn of jobs that this script stored before its settings named another store."""
        from ergon_framework.app.earlier_store import earlier_store, warn_of_earlier_jobs

        own = {self._name or EXECUTOR}
        found = earlier_store(self.settings, self.setup.url, home=self._home, executors=own)
        if found is None:
            return
        reference = self._reference()
        # An App that names its store in the script, or is started by a web framework, cannot be
        # told to use another one by a command of ours.
        is_fixed = self._url is not None or reference.startswith("ergon_framework.")
        warn_of_earlier_jobs(found, None if is_fixed else f"ergon run {shlex.quote(reference)}")

    def _consumer_parts(self, scope: DependencyScope | None, *, burst: bool) -> list[ConsumerPart]:
        from ergon_framework.app.run_app import ConsumerPart, consumer_wiring
        from ergon_framework.app.source_watch import MAX_BURST_OUTAGE

        settings, max_outage = self.settings, MAX_BURST_OUTAGE if burst else None

        def part(declared: task_functions.FunctionConsumer[..., Any]) -> ConsumerPart:
            wire = partial(consumer_wiring, declared, settings, burst=burst, scope=scope)
            return ConsumerPart(declared.name, wire, max_outage=max_outage)

        return [part(each) for each in self._consumers.values()]

    def drain(
        self,
        *,
        queues: str | Sequence[str] | None = None,
        max_jobs: int | None = None,
        raises: bool = False,
    ) -> job_worker.WorkerReport:
        """Run the due jobs here and now, without processes: for tests and short scripts.

        Handlers that take a list get as many of their jobs as they take at once. More than
        ``max_jobs`` jobs (10 000) are refused: a handler may enqueue itself without end. With
        ``raises`` the first failure is raised instead of being recorded only.
        """
        from ergon_framework.app.inline_worker import MAX_JOBS, drain

        served = checked_queues("drain", queues)
        check_values("drain", max_jobs=max_jobs, raises=raises)
        self._dependencies.check()
        self._refuse_second_unnamed_app()
        most = MAX_JOBS if max_jobs is None else max_jobs
        return drain(self, queues=served, max_jobs=most, raises=raises)

    def worker_setup(self, given: Mapping[str, float]) -> app_jobs.JobSetup:
        """The setup with this script as an executor, unless the settings define one like it."""
        from ergon_framework.jobs.settings import ExecutorSettings

        setup = replace(self.setup, declared=self.declared_schedules())
        own_name = self.executor or EXECUTOR
        wanted = [own_name, *self._waited_for({EXECUTOR, self._name} - {own_name, ""})]
        missing = [name for name in wanted if name not in setup.executors]
        self._refuse_second_unnamed_app()
        if own_name not in missing and given:
            from ergon_framework.core.text import toml_table

            (word, number), *_ = given.items()
            raise ConfigurationError(
                f"app.run: the settings define the executor {own_name!r}, so they say how many"
                " processes it has, what each has in flight, and when it is replaced",
                remedy=f"write {word} = {number} under {toml_table('executors', own_name)}",
            )
        if not missing:
            return setup
        command = (sys.executable, "-m", "ergon_framework.executor", "--app", self._reference())
        # It runs this very script, which may open the store to enqueue more.
        # It imports the script from where this process did, whatever folder it is started in.
        more = {
            "command": command,
            "pass_secrets": ["*"],
            "env": self._import_path(),
            "startup_grace": STARTUP_GRACE + self._startup_timeout,
            "shutdown_grace": SHUTDOWN_GRACE + self._shutdown_timeout,
        }
        own = ExecutorSettings.model_validate({**more, **given})
        # Under an earlier name only jobs come that were stored before: one process will do.
        few = own.model_copy(update={"pool_size": 1})
        added = {name: own if name == own_name else few for name in missing}
        default = setup.jobs.default_executor or own_name
        jobs = setup.jobs.model_copy(update={"default_executor": default})
        return replace(
            setup,
            jobs=jobs,
            executors={**setup.executors, **added},
            own_handlers=dict.fromkeys(added, frozenset(self.registry.names)),
        )

    @property
    def _startup_timeout(self) -> float:
        """Seconds that what an executor opens may take, one after the other."""
        hooks = len(self.registry.startup_hooks) * STARTUP_TIMEOUT
        stores = STARTUP_TIMEOUT if self.registry.openings else 0.0  # new tables, on a busy machine
        return self._dependencies.startup_timeout + hooks + stores

    @property
    def _shutdown_timeout(self) -> float:
        hooks = len(self.registry.shutdown_hooks) * SHUTDOWN_TIMEOUT
        return self._dependencies.shutdown_timeout + hooks

    def declared_schedules(self) -> dict[str, dict[str, job_scheduler.ScheduleSettings]]:
        """The schedules of this script under its own source, none included: then old ones go."""
        from ergon_framework.jobs.scheduler import OF_APP

        own = self.executor
        prefix = f"{own}." if own else ""  # two scripts on one store may both have a "sweep"
        found = {
            f"{prefix}{name}": handler.schedule(fields)
            for name, (handler, fields) in self._schedules.items()
        }
        return {f"{OF_APP}{self._name or EXECUTOR}": found}

    def _waited_for(self, names: set[str]) -> list[str]:
        """Those under which jobs still know this script, from before it had its present one."""
        from ergon_framework.core.job import JobStatus
        from ergon_framework.ports.jobstore import Search

        store = self.client.store
        unfinished = tuple(status for status in JobStatus if not status.is_final)

        def is_named(name: str) -> bool:
            known = (f"{name}#{handler}" for handler in self.registry.names)
            searches = (Search(statuses=unfinished, handler=each) for each in known)
            return any(next(iter(store.search(each, 1)), None) for each in searches)

        return sorted(name for name in names if is_named(name))

    def _reference(self) -> str:
        """How another process finds this object: ``script.py:app`` or ``package.module:app``."""
        from ergon_framework.app.script_source import bound_late

        for module in self._holders():
            held = getattr(module, "__dict__", {})
            name = next((key for key, value in held.items() if value is self), None)
            spec, file = held.get("__spec__"), held.get("__file__")
            if name is None:
                continue
            late = "" if file is None else bound_late(Path(file), name)
            if late:
                raise _not_importable(f"{name} of {file} is made {late}", name)
            # A script that was imported has a spec like a module; it need not be on the path of an
            # executor, which therefore gets its file.
            is_script = file is not None and spec is not None and Path(file).stem == spec.name
            if spec is not None and spec.name != "__main__" and not is_script:
                return f"{spec.name}:{name}"  # a module of a package, or that of python -m
            if file is not None and Path(file).is_file():  # not what came from a pipe
                return f"{Path(file).absolute()}:{name}"
        raise self._held_nowhere()

    def _held_nowhere(self) -> WiringError:
        """Why no other process finds this object."""
        if self._maker:
            return _not_importable(f"the App of {self._file} is made in {self._maker}()", "app")
        from ergon_framework.app.script_source import made_late

        late = "" if self._file is None else made_late(self._file)
        if late:
            return _not_importable(f"the App of {self._file} is made {late}", "app")
        return WiringError(
            "an App can only be run from a file that holds it as a global name",
            remedy="write app = App() at the top of a script; where there is no file, as in a"
            " notebook, app.drain() runs what is due in this process",
        )

    def _refuse_second_unnamed_app(self) -> None:
        """Refuse to work beside another App of this file that has no name of its own either.

        Jobs name the App that runs them by the file: a worker of either would take those of both.
        """
        own = self.executor
        if not own or not self.registry.names or self.setup.url.startswith("memory:"):
            return
        # A copy: another thread may import the module, and add names, meanwhile.
        held = {name: app for name, app in [*self._globals.items()] if isinstance(app, App)}
        mine = next((name for name, app in held.items() if app is self), None)
        for name, other in held.items() if mine is not None else ():
            is_other = other is not self and bool(other.registry.names)
            if is_other and (other.executor, other.setup.url) == (own, self.setup.url):
                raise WiringError(
                    f"{mine!r} and {name!r} are two Apps of one file and one store, and both"
                    f" are called {own!r}: each would take jobs of the other",
                    remedy=f'give one a name of its own: {name} = App(name="{name}")',
                )

    def _import_path(self) -> dict[str, str]:
        """Variables by which an executor imports the module of this App, unless it is installed."""
        module = self._reference().rpartition(":")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or not (Path(file).stem == "__init__" or "." in module):
            return {}
        depth = module.count(".") + (Path(file).stem == "__init__")
        root = str(Path(file).absolute().parents[depth])
        if root in site_folders():
            return {}
        others = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([root, *([others] if others else [])])}

    def _holders(self) -> list[ModuleType]:
        """Modules that may hold this App, first the one that makes it: another one may do so only
        when it is run, behind a guard, and not when an executor imports it.
        """
        modules = [*list(sys.modules.values())]
        main = sys.modules.get("__main__")
        if main is not None:
            modules.insert(0, main)
        return sorted(modules, key=lambda each: not self._is_made_in(each))

    def _find_home(self) -> Path:
        """The folder of ``ergon.toml``, of ``ergon.db`` and of relative URLs: that of the script.

        An App that we make for somebody else says where that one's files are.
        """
        return Path.cwd() if self._file is None else self._file.parent

    def _is_made_in(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return self._file is not None and file is not None and Path(file).absolute() == self._file

    def _loaded(self) -> app_settings.Settings:
        """The settings, in which this script's store stands as if it were written there."""
        from ergon_framework.app.jobs import resolve_url
        from ergon_framework.app.settings import load_settings
        from ergon_framework.app.settings.stores import url_as_written, with_store

        config = self._config
        if config is not None and not config.exists():
            # A relative name means the working directory first, as in every command.
            near = self._home / config
            config = near if near.exists() else config
        settings = load_settings(config, folder=self._settings_folder())
        jobs = settings.extensions.get("jobs")
        named = url_as_written(settings, None if jobs is None else jobs.store)
        url = self._url or self._default_url(named)
        if not url:
            return settings
        if {*str(self._home)} & {"?", "#"}:
            raise ConfigurationError(
                f"the folder {self._home} cannot hold a store: ? and # mean something else in a"
                " URL",
                remedy='rename the folder, or name a file elsewhere: App("sqlite:////tmp/ergon.db")',
            )
        # A folder that ERGON_CONFIG names is where every command looks for the store, too.
        home = self._home if self._url or settings.home is None else settings.home
        return with_store(settings, resolve_url(url, home))

    def _settings_folder(self) -> Path:
        """Where ``ergon.toml`` is: beside the script, whatever folder it is started in.

        For a module of a package that has none beside it, that is the nearest folder above, up to
        the one that the package is in: a module does not know from where it is imported.
        """
        from ergon_framework.app.settings import FILE

        folders = [self._home]
        while (folders[-1] / "__init__.py").exists():
            folders.append(folders[-1].parent)
        return next((each for each in folders if os.path.lexists(each / FILE)), self._home)

    def _default_url(self, named: str) -> str:
        """The store of an App that was given none; empty for the one that the settings name."""
        from ergon_framework.app.settings.stores import SCRIPT_FILE

        return "" if named else f"sqlite:///{SCRIPT_FILE}"


def site_folders() -> set[str]:
    """Where installed packages are, which every process of this interpreter finds."""
    import sysconfig

    return {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}


def _caller(made: App) -> tuple[dict[str, Any], str]:
    """The globals of who makes the App, and the function; empty where it is none of the user's."""
    # Frame 0 is this function, 1 App.__init__, 2 the wrapper that explains wrong arguments, 3 the
    # code that makes the App.
    frame = sys._getframe(3)  # noqa: SLF001 - inspect does the same, after reading source files
    while _initializes(frame, made) and frame.f_back is not None:
        frame = frame.f_back  # a subclass may be in a package that many scripts share
    function = frame.f_code.co_name
    return frame.f_globals, "" if function[0] in "<_" else function


def _initializes(frame: FrameType, made: App) -> bool:
    """Whether a frame is the ``__init__`` of a subclass, which calls that of ``App``."""
    code = frame.f_code
    return code.co_name == "__init__" and frame.f_locals.get(code.co_varnames[0]) is made


def _outside_of_package(home: Path) -> Path:
    """The folder itself; refused in our own package, which all projects of a machine may share."""
    if home.is_relative_to(PACKAGE):
        raise WiringError(
            f"the files of this App would be in {home}, inside the installed package of Ergon",
            remedy="write app = App() in a file of your own, or start in a folder of your own",
        )
    return home


def _refuse_name_of_python(names: Mapping[str, Any], file: Path | None) -> None:
    """Refuse a file such as ``queue.py`` or ``json.py``: whatever imports a module of Python, which
    may be the recording of an outcome, would get this file instead.
    """
    if file is None:
        return
    spec, name = names.get("__spec__"), str(names.get("__name__"))
    module = spec.name if spec is not None else file.stem if name == "__main__" else name
    if module in sys.stdlib_module_names:
        raise WiringError(
            f"the file {file} is called like Python's module {module!r}, and is imported in its"
            " place",
            remedy=f"rename the file, for example to my_{module}.py",
        )


def _file_in(names: Mapping[str, Any]) -> Path | None:
    """The file of a module by its globals, if it has one."""
    file = names.get("__file__")
    return Path(file).absolute() if file else None


def _name_of(file: Path | None) -> str:
    """What a script is called, whether it is run or imported; empty for what has no file."""
    if file is None or not file.is_file():  # typed at a prompt, or came from a pipe
        return ""
    is_package = file.stem in ("__init__", "__main__")
    return re.sub(r"[^\w.-]", "_", file.parent.name if is_package else file.stem)[:MAX_NAME]


def _not_importable(what: str, name: str) -> WiringError:
    return WiringError(
        f"{what}, and the processes that run its jobs do not find it there: they import the file",
        remedy=f"write {name} = App() at the top level of the file, outside of functions and of the"
        f" guard; {name}.run() stays where it is",
    )
