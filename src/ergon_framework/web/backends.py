"""The stores and zones that the server reads, as the settings name them.

It creates none of them. Only pausing a queue before the first job makes tables.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from ergon_framework.app.jobs import JobSetup, setup_of
from ergon_framework.app.node import NodeAddress, node_address, reach_zone
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import (
    call_stores,
    file_has_jobs,
    file_has_table,
    has_jobs,
    is_in_memory,
    keeps_calls,
    keeps_jobs,
    resolve_url,
)
from ergon_framework.app.zones import ZoneSetup
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    NodeUnavailableError,
    SettingsError,
    StoreSchemaError,
)
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import FullJobStore
from ergon_framework.ports.providerstore import (
    LaneHealth,
    LaneKey,
    ProviderInspector,
    ProviderStore,
)
from ergon_framework.providers.migrations import VERSION_TABLE
from ergon_framework.providers.store_urls import current_store as current_provider_store
from ergon_framework.storage.substitutes import find_substitute
from ergon_framework.storage.urls import file_of
from ergon_framework.web.audit import NOT_CONNECTED

if TYPE_CHECKING:
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.boundary.zone import LocalZone
    from ergon_framework.providers.migrations.database import MigrationDatabase


class JobBackend:
    """The job store. A file is opened for reading with every call, so that it may come and go.

    A store on a server is opened with the first call, because opening it is expensive, and its
    connections recover by themselves.
    """

    def __init__(self, setup: JobSetup) -> None:
        self.setup = setup
        self._lock = threading.Lock()
        self._server: FullJobStore | None = None

    @contextmanager
    def opened(self) -> Iterator[JobClient]:
        """A client of the store; of an empty store if no job was ever stored."""
        with self._store() as store:
            yield JobClient(settings=self.setup.jobs, store=store)

    @contextmanager
    def writing(self, *, makes_tables: bool = False) -> Iterator[JobClient]:
        """A client that may change jobs, for the time of one person's request.

        It is opened for each request: few people act, and the rest of the server opens the store
        for reading. If there are no tables yet, nothing can be found, and they are made only on
        demand.
        """
        substitute: FullJobStore | None = find_substitute("jobs", self.setup.url)
        if substitute is not None:
            yield JobClient(settings=self.setup.jobs, store=substitute)
            return
        file = file_of(self.setup.url)
        is_there = has_jobs(self.setup.url) if file is None else file_has_jobs(file)
        if not is_there and not makes_tables:
            with self.opened() as client:  # An empty store: looking for a job makes no table.
                yield client
            return
        with closing(open_job_store(self.setup.url)) as store:
            yield JobClient(settings=self.setup.jobs, store=store)

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read and has all of its tables."""
        with self.opened() as client:
            client.store.check_tables()
            # The tables may exist while this user may not read their rows.
            client.store.find(_NO_JOB)

    def close(self) -> None:
        """Close the store on a server."""
        # Taken out under the lock, and closed outside of it, because closing may wait for the
        # server.
        with self._lock:
            store, self._server = self._server, None
        if store is not None:
            store.close()

    @contextmanager
    def _store(self) -> Iterator[FullJobStore]:
        file = file_of(self.setup.url)
        substitute: FullJobStore | None = find_substitute("jobs", self.setup.url)
        if substitute is not None:  # A test inspects the jobs of its sandbox.
            yield substitute
        elif file is None:
            yield self._on_server()
        # Checked before it is opened: opening a store makes its tables, and this application must
        # write nothing.
        elif file_has_jobs(file):
            with closing(open_job_store(self.setup.url, read_only=True)) as store:
                yield store
        else:
            yield MemoryJobStore(time.time)

    def _on_server(self) -> FullJobStore:
        with self._lock:
            if self._server is None:
                # Not remembered, because the first job may be stored while this application runs.
                if not has_jobs(self.setup.url):
                    return MemoryJobStore(time.time)
                self._server = open_job_store(self.setup.url, read_only=True)
            return self._server


_NO_JOB = "ergon-readiness"
"""An id that no job has. A search for it shows that jobs can be read, and costs one row."""
_NOBODY = LaneKey("*", "ergon", "readiness")
"""A lane that no provider uses. Reading it shows that the store answers."""


class ProviderBackend:
    """The store of provider calls, opened once it exists: opening one that does not would make its
    tables.
    """

    def __init__(self, store: str | ProviderStore) -> None:
        self._store = store
        self._is_open = False
        self._file: tuple[int, int] | None = None

    @property
    def database(self) -> MigrationDatabase | None:
        """The database of its tables. None if it has none, as in the sandbox of a test."""
        return None if self._is_substituted() else self._database

    def _is_substituted(self) -> bool:
        store = self._store
        return isinstance(store, str) and find_substitute("providers", store) is not None

    @cached_property
    def _database(self) -> MigrationDatabase | None:
        if not isinstance(self._store, str) or self._store.lower().startswith("memory:"):
            return None
        from ergon_framework.providers.migrations.database import database_of

        return database_of(self._store)

    @property
    def looking(self) -> ProviderInspector | None:
        """The inspector of its tables. None if it has none."""
        return None if self._is_substituted() else self._looking

    @cached_property
    def _looking(self) -> ProviderInspector | None:
        if self._database is None:
            return None
        from ergon_framework.providers.stores.inspector import SqlProviderInspector

        return SqlProviderInspector(self._database)

    def has_tables(self) -> bool:
        """Whether there is anything to read. Raises ``StoreError`` when the database does not
        answer.
        """
        database = self.database
        if database is None:
            return True
        if database.file is not None:
            # Any of the tables counts: a database that has lost some of them is not empty.
            named = (VERSION_TABLE, "provider_dead_letters")
            return any(file_has_table(database.file, each) for each in named)
        # Asked at each request, and each question to a server is a round trip.
        if self._is_open:
            return True  # Opening the store has made the tables.
        from ergon_framework.providers.migrations import commands

        with database.connect() as connection:
            return commands.current(connection) is not None

    def opened(self) -> ProviderStore:
        """The store, which the whole process shares; an empty one if there are no tables yet."""
        if not self.has_tables():
            from ergon_framework.providers.stores.memory import MemoryProviderStore

            return MemoryProviderStore(time.time)
        if self.database is not None and self.database.file is not None:
            self._notice(self.database.file)
        # The store of a sandbox belongs to the test, so the server does not close it.
        self._is_open = not self._is_substituted()
        return current_provider_store(self._store)

    def check(self) -> None:
        """Raise ``StoreError`` unless the store can be read and has all of its tables."""
        self.opened().lane_state(_NOBODY)
        if self._is_open and self.database is not None:
            from ergon_framework.providers.migrations import commands

            with self.database.connect() as connection:
                commands.check_tables(connection, self.database.name)

    def close(self) -> None:
        """Close what was opened by its URL."""
        if self._is_open and isinstance(self._store, str):
            self._is_open = False
            current_provider_store(self._store).close()

    def _notice(self, file: Path) -> None:
        """Close the old file if another one has taken its place, such as a backup."""
        found = file.stat()
        mark = (found.st_dev, found.st_ino)
        # An open connection would go on reading the file that was moved away.
        if self._file not in {None, mark}:
            self.close()
        self._file = mark


def readable_store(backends: Sequence[ProviderBackend]) -> ProviderStore:
    """The lanes of all provider stores as one store. The stores are looked up with every call."""
    return cast(ProviderStore, _OpenStores(backends))


class _OpenStores:
    """Passes every call to the stores that are open by then, because lanes may be in
    any of them.
    """

    def __init__(self, backends: Sequence[ProviderBackend]) -> None:
        self._backends = backends

    def health(self, tenant_id: str) -> list[LaneHealth]:
        return [lane for each in self._backends for lane in each.opened().health(tenant_id)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backends[0].opened(), name)


_ADMIN = "bsfg.v1.BoundaryAdmin/"


@dataclass(frozen=True, slots=True)
class ZoneBackend:
    """Reads a zone from its node, or from its folder.

    Facts are released and discarded by its node only.
    """

    name: str
    node: NodeAddress | None
    """The node. None when the settings let it choose its port, so that its address is unknown."""
    settings: ZoneSettings
    timeout: float

    def status(self) -> dict[str, Any]:
        """The state of the zone. ``source`` says whether it comes from its node or from
        its folder.
        """
        from ergon_framework.boundary.node.status import status

        return self._asked("GetStatus", {}, status)

    def consumers(self) -> dict[str, Any]:
        """Every consumer with its cursor and its backlog."""
        from ergon_framework.boundary.node.wire import consumer_view

        def look(zone: LocalZone) -> dict[str, Any]:
            now = zone.clock()
            return {"consumers": [consumer_view(each, now) for each in zone.store.consumers()]}

        return self._asked("ListConsumers", {}, look)

    def quarantine(self, state: str, consumer: str | None) -> dict[str, Any]:
        """The facts that were set aside, without their content."""
        from ergon_framework.boundary.node.wire import quarantine_view

        def look(zone: LocalZone) -> dict[str, Any]:
            found = zone.store.quarantine(consumer, None if state == "all" else state)
            return {"items": [quarantine_view(each) for each in found]}

        wanted = {"state": state} | ({} if consumer is None else {"consumer_name": consumer})
        return self._asked("ListQuarantine", wanted, look)

    def gaps(self) -> dict[str, Any]:
        """Every recorded loss."""
        from ergon_framework.boundary.node.wire import gap_view

        return self._asked(
            "ListGaps", {}, lambda zone: {"gaps": [gap_view(each) for each in zone.store.gaps()]}
        )

    def check(self) -> None:
        """Raise ``ErgonError`` unless the node or the folder answers for the zone."""
        self.status()

    def settle(self, method: str, item: int, reason: str) -> dict[str, Any]:
        """Release or discard a fact that was set aside. Only a node changes its zone.

        The zone of a script may have no node; then this process serves it for the time of this
        call.
        """
        try:
            transport = reach_zone(ZoneSetup(self.name, self.settings), self.timeout)
        except ConfigurationError as error:
            if split_address(self.settings.listen)[1] != 0:
                raise  # For example certificates that are missing: starting the node does not help.
            # The node chooses its port, and there is no folder.
            raise NodeUnavailableError(
                "nobody knows where the node listens", reason=NOT_CONNECTED
            ) from error
        fields = {"id": item, "reason": reason}
        with closing(transport):
            answer = transport.call(_ADMIN + method, json.dumps(fields).encode())
        found: dict[str, Any] = json.loads(answer)
        return found

    def _asked(
        self, method: str, fields: dict[str, Any], look: Callable[[LocalZone], dict[str, Any]]
    ) -> dict[str, Any]:
        try:
            return {**self._by_node(method, fields), "source": "node"}
        except ErgonError as error:
            # People open this page when a node is down, so it must work then.
            return {**self._by_folder(look, error), "source": "folder"}

    def _by_node(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        if self.node is None:
            raise NodeUnavailableError("nobody knows where the node listens")
        # Opened for each call: a node may be restarted, with other certificates, at any time.
        with closing(self.node.connect(self.timeout)) as transport:
            answer = transport.call(_ADMIN + method, json.dumps(fields).encode())
        found: dict[str, Any] = json.loads(answer)
        return found

    def _by_folder(
        self, look: Callable[[LocalZone], dict[str, Any]], refusal: ErgonError
    ) -> dict[str, Any]:
        from ergon_framework.boundary.backup import looked_at

        try:
            with looked_at(self.name, self.settings) as zone:
                return look(zone)
        except (ConfigurationError, StoreSchemaError):
            # The node's error is the one to show. That of the folder would send the reader to a
            # folder that never existed.
            pass  # There never was such a folder: the node was meant.
        raise refusal


PROVIDERS = "providers"
"""The name of the store of provider calls among the backends."""
_NODE_SHARE = 0.6
"""The share of a request's time that a node has to answer; the rest is for its folder."""


class Backend(Protocol):
    """A store or a zone that the server reads."""

    def check(self) -> None:
        """Raise ``ErgonError`` unless it can be read."""


@dataclass(frozen=True, slots=True)
class Backends:
    """Everything that the server reads. None stands for a backend that the settings do not name."""

    jobs: JobBackend | None = None
    providers: Mapping[str, ProviderBackend] = field(default_factory=dict)
    """The provider stores by backend name, because a provider may have a store of its own."""
    zones: Mapping[str, ZoneBackend] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    """The settings that they were made from."""

    def parts(self) -> Iterator[tuple[str, Backend]]:
        """The backends that exist, by the names that probes and metrics use."""
        if self.jobs is not None:
            yield "jobs", self.jobs
        yield from self.providers.items()
        for name, zone in self.zones.items():
            yield zone_name(name), zone

    def close(self) -> None:
        """Close everything that was opened."""
        for each in self.providers.values():
            each.close()
        if self.jobs is not None:
            self.jobs.close()


def zone_name(name: str) -> str:
    """The name of a zone among the backends."""
    return f"zone:{name}"


def provider_store_name(name: str) -> str:
    """The name of a provider's store among the backends; without a provider, that of the common
    store.
    """
    return f"{PROVIDERS}:{name}" if name else PROVIDERS


def backends_of(settings: Settings, url: str | None = None) -> Backends:
    """The backends that the settings name. ``url`` replaces their store of jobs and
    provider calls.
    """
    jobs = setup_of(settings, url)
    calls = _calls(url) if url else call_stores(settings)
    zones = _zones(settings)
    if not (jobs.url or calls or zones):
        file = settings.file
        where = "there is no settings file" if file is None else f"{file} has none"
        raise SettingsError(
            f"no store: {where}",
            remedy='write url = "sqlite:///work.db" under [store] in ergon.toml, or give --store',
        )
    for each in (jobs.url, calls.get("", "")):
        if is_in_memory(each):
            raise ConfigurationError(
                "what a store in memory holds, only its own process can see",
                remedy="name a store in a database, such as sqlite:///work.db",
            )
    return Backends(
        JobBackend(jobs) if keeps_jobs(jobs.url) else None,
        {
            provider_store_name(name): ProviderBackend(each)
            for name, each in calls.items()
            # The error is about a single provider: the others can still be shown.
            if not is_in_memory(each)
        },
        zones,
        settings,
    )


def _calls(url: str) -> dict[str, str]:
    """The store that was named by URL, if it is of a kind that keeps provider calls."""
    return {"": resolve_url(url, Path())} if keeps_calls(url) else {}


def _zones(settings: Settings) -> dict[str, ZoneBackend]:
    from ergon_framework.app.zones import known_zone

    found = {}
    for name in settings.extensions.get("zones") or {}:
        setup = known_zone(settings.file, name)
        if setup is not None:
            timeout = settings.server.timeout * _NODE_SHARE
            address = _address(settings.file, name)
            found[name] = ZoneBackend(name, address, setup.settings, timeout)
    return found


def _address(file: Path | None, zone: str) -> NodeAddress | None:
    try:
        return node_address(file, zone)
    except ConfigurationError:  # The node chooses its port.
        return None
