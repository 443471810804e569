"""``/metrics`` in the text format of Prometheus: jobs, providers and zones.

A store that cannot be read is counted as an error, and the others are still exposed. Counters and
histograms of the store that cannot be read keep their last values, because a family that two stores
share must not go down; its gauges are left out. The number of series of a family is bounded,
because the names of queues and consumers are not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fastapi import APIRouter, Response

from ergon_framework.core.job import JobStatus, route
from ergon_framework.core.zone_link import Mode
from ergon_framework.errors import StoreUnavailableError, describe
from ergon_framework.jobs.stores.unreadable import UNREADABLE
from ergon_framework.jobs.totals import OTHERS
from ergon_framework.jobs.views import (
    missing_executors,
    unsynced,
    without_version,
    worker_state,
)
from ergon_framework.ports.jobstore import Named, Queue, WorkerRecord
from ergon_framework.ports.providerstore import CallTotals, LaneCount, ProviderStats, QuotaTotals
from ergon_framework.telemetry.prometheus_text import (
    MEDIA_TYPE,
    Family,
    HistogramSeries,
    LabelledHistogramFamily,
    Series,
    text_of,
)
from ergon_framework.web.backend_pool import BackendPool, backend_title
from ergon_framework.web.backends import (
    Backends,
    JobBackend,
    ProviderBackend,
    ZoneBackend,
    zone_name,
)
from ergon_framework.web.dead_letter_routes import WAITING
from ergon_framework.web.responses import NO_STORE, BackendUnavailableError
from ergon_framework.web.totals import CallCounters, Exposed, JobCounters

logger = logging.getLogger("ergon.web")


MAX_SERIES = 1000
"""How many series one family may have. Users choose names of queues, consumers and providers
without a limit.
"""
MAX_LABEL = 200
"""How many characters the value of a label may have."""
SCRAPE_TIMEOUT = 4.0
"""Seconds that one backend may take once it has answered before. A scraper that waits longer would
miss the other backends as well. The first answer opens a connection, and may take the time of any
request.
"""


def exposed(families: Iterable[Exposed]) -> str:
    """All metrics, and how many series had to be left out."""
    found: list[Exposed] = []
    left_out = 0
    for family in merged(families):
        left_out += max(0, len(list(family.series)) - MAX_SERIES)
        found.append(_cut(family))
    text = f"Series left out of this answer: a metric has at most {MAX_SERIES}."
    return text_of([*found, _gauge("ergon_series_left_out", text, [({}, left_out)])])


def _cut(family: Exposed) -> Exposed:
    # The same twice, for type checkers: the series of the two classes have different types.
    if isinstance(family, Family):
        return replace(family, series=list(family.series)[:MAX_SERIES])
    return replace(family, series=list(family.series)[:MAX_SERIES])


def merged(families: Iterable[Exposed]) -> list[Exposed]:
    """Each family once, with all series of its name, in their order.

    Series with the same labels are added up, because two stores may have calls of the same
    provider.
    """
    found: dict[str, Exposed] = {}
    for each in families:
        known = found.get(each.name)
        if isinstance(each, LabelledHistogramFamily):
            before = known.series if isinstance(known, LabelledHistogramFamily) else ()
            found[each.name] = replace(each, series=_histograms_added_up([*before, *each.series]))
        else:
            others = known.series if isinstance(known, Family) else ()
            found[each.name] = replace(each, series=_added_up([*others, *each.series]))
    return list(found.values())


def _added_up(series: Iterable[Series]) -> list[Series]:
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in series:
        key = _key(labels)
        sums[key] = sums.get(key, 0) + value
    return [(dict(key), value) for key, value in sums.items()]


def _histograms_added_up(series: Iterable[HistogramSeries]) -> list[HistogramSeries]:
    sums: dict[tuple[tuple[str, str], ...], HistogramSeries] = {}
    for each in series:
        key = _key(each.labels)
        known = sums.get(key, HistogramSeries({}, [0] * len(each.counts), 0.0))
        counts = [a + b for a, b in zip(known.counts, each.counts, strict=True)]
        sums[key] = HistogramSeries(dict(key), counts, known.total + each.total)
    return list(sums.values())


def _key(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, text[:MAX_LABEL]) for name, text in labels.items())


def job_metrics(source: JobBackend, counters: JobCounters) -> list[Exposed]:
    """The metrics of jobs, from one read of their store."""
    with source.opened() as client:
        now = client.store.now()
        queues, workers = client.store.queues(), client.store.workers()
        ended = client.store.ended_workers()
        missing = missing_executors(client.store.named(), workers, now)
        is_unsynced = unsynced(client.store) is not None
    text = "1 when the store acknowledges jobs before they are on disk."
    synced = Family("ergon_job_store_unsynced", "gauge", text, [({}, int(is_unsynced))])
    return [
        *_of_queues(queues, now),
        _of_missing_versions(queues, workers, now),
        *_of_workers(workers, now),
        _of_missing(missing, now),
        _of_missing_handlers(missing, queues, now),
        synced,
        *counters.families([*workers, *ended], now),
    ]


def _of_queues(queues: Sequence[Queue], now: float) -> list[Family]:
    # Taken out of the loops: there may be 10,000 queues, and the value of an enum member is slow to
    # read.
    failed = JobStatus.FAILED.value
    return [
        Family("ergon_jobs", "gauge", "Jobs in the store, by queue and status.", _jobs_in(queues)),
        Family(
            "ergon_queue_oldest_due_seconds",
            "gauge",
            "How long the oldest job that is due has waited; 0 when none is.",
            _worst(queues, lambda queue: _age(queue.oldest_due_at, now)),
        ),
        Family(
            "ergon_queue_paused",
            "gauge",
            "1 for a queue that is paused.",
            _worst(queues, lambda queue: int(queue.is_paused)),
        ),
        dead_letters("job", sum(queue.counts.get(failed, 0) for queue in queues)),
    ]


def _jobs_in(queues: Sequence[Queue]) -> list[Series]:
    """The jobs by queue and status. Queues beyond the bound are counted together."""
    statuses = [each.value for each in JobStatus]
    room = MAX_SERIES // (len(statuses) + 1)  # One more, for unreadable rows.
    own, others = _with_own_series(queues, room)
    counted = [(queue.name, queue.counts) for queue in own]
    if others:
        together: Counter[str] = Counter()
        for queue in others:
            for status, number in queue.counts.items():
                together[status] += number
        counted.append((OTHERS, together))
    # Zeros as well, so that no series disappears with the last job in its state.
    found: list[Series] = [
        ({"queue": name, "status": status}, counts.get(status, 0))
        for name, counts in counted
        for status in statuses
    ]
    found += [
        ({"queue": name, "status": UNREADABLE}, counts[UNREADABLE])
        for name, counts in counted
        if counts.get(UNREADABLE)
    ]
    return found


def _worst(queues: Sequence[Queue], of: Callable[[Queue], float]) -> list[Series]:
    """A number by queue. For the queues beyond the bound together, it is the greatest."""
    own, others = _with_own_series(queues, MAX_SERIES)
    found: list[Series] = [({"queue": queue.name}, of(queue)) for queue in own]
    if others:
        found.append(({"queue": OTHERS}, max(map(of, others))))
    return found


def _with_own_series(queues: Sequence[Queue], room: int) -> tuple[Sequence[Queue], Sequence[Queue]]:
    """The queues that have series of their own, which are the first by name, and all others."""
    if len(queues) <= room:
        return queues, ()
    return queues[: room - 1], queues[room - 1 :]


def _of_workers(workers: Sequence[WorkerRecord], now: float) -> list[Family]:
    states = Counter({"running": 0, "silent": 0})
    states.update(worker_state(each, now) for each in workers)
    alive = sum(number for state, number in states.items() if state != "silent")
    return [
        Family(
            "ergon_workers_alive", "gauge", "Workers heard of in the last minute.", [({}, alive)]
        ),
        Family(
            "ergon_workers",
            "gauge",
            "Workers by state; silent ones have told nothing for a minute.",
            [({"state": state}, number) for state, number in sorted(states.items())],
        ),
    ]


def _of_missing(missing: Sequence[Named], now: float) -> Family:
    found = [
        ({"executor": each.executor}, _age(each.seen_at, now))
        for each in missing
        if "#" not in each.executor
    ]
    text = "How long no worker has had an executor that due jobs wait for."
    return Family("ergon_executor_missing_seconds", "gauge", text, found)


def _of_missing_handlers(missing: Sequence[Named], queues: Sequence[Queue], now: float) -> Family:
    """A handler that was never seen is missing for as long as the oldest job of its
    queues waits.
    """
    since = {queue.name: queue.oldest_due_at for queue in queues} if missing else {}
    found = []
    for each in missing:
        executor, handler = route(each.executor)
        if "#" in each.executor:
            waits = (_age(since.get(queue), now) for queue in each.queues)
            longest = max(waits, default=0.0)
            labels = {"executor": executor, "handler": handler}
            found.append((labels, min(_age(each.seen_at, now), longest)))
    text = "How long no worker has had a handler that due jobs wait for."
    return Family("ergon_handler_missing_seconds", "gauge", text, found)


def _of_missing_versions(
    queues: Sequence[Queue], workers: Sequence[WorkerRecord], now: float
) -> Family:
    pins = {each.name: each.pinned_version for each in queues if each.pinned_version is not None}
    found = [
        ({"queue": queue, "version": version}, 1)
        for queue, version in without_version(pins, workers, now).items()
    ]
    text = "1 for a queue that is pinned to a version that no living worker runs."
    return Family("ergon_queue_version_missing", "gauge", text, found)


def dead_letters(kind: str, number: int) -> Family:
    """How many dead letters of one kind wait for an operator."""
    text = "Jobs and provider calls that were given up and wait for an operator."
    return Family("ergon_dead_letters", "gauge", text, [({"kind": kind}, number)])


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else round(max(0.0, now - since), 3)


_STATES = ("closed", "open", "half_open")
_OUTCOMES = ("succeeded", "failed", "dead_lettered")


def provider_metrics(source: ProviderBackend, counters: CallCounters) -> list[Exposed]:
    """The metrics of provider calls in one store; none if it has no tables."""
    # Also for an error that is not the store's: counters must know that the first minute was
    # missed.
    try:
        return _of_providers(source, counters)
    except Exception:
        counters.missed()
        raise


def _of_providers(source: ProviderBackend, counters: CallCounters) -> list[Exposed]:
    source.check()
    if source.looking is None:
        return []
    if not source.has_tables():
        counters.saw_nothing(source.opened().now())
        return []
    now = source.opened().now()
    found = source.looking.figures(now, WAITING)
    return [
        *counters.families(source.looking, now),
        *_circuits(found),
        *_quotas(found),
        *_calls(found),
        _reasons(found),
        dead_letters("provider", found.letters),
    ]


def _circuits(found: ProviderStats) -> list[Family]:
    counts = {each[:3]: each.number for each in found.circuits}
    lanes = sorted({each[:2] for each in found.circuits})
    return [
        Family(
            "ergon_provider_circuits",
            "gauge",
            "Lanes (a tenant's calls to a capability) by the state of their circuit.",
            [
                (
                    {"provider": provider, "capability": capability, "state": state},
                    counts.get((provider, capability, state), 0),
                )
                for provider, capability in lanes
                for state in _STATES
            ],
        ),
        Family(
            "ergon_provider_lanes_failed_1h",
            "gauge",
            "Lanes that failed in the last hour, by the reason of their latest failure.",
            [({**_labels(each), "reason": str(each.what)}, each.number) for each in found.failures],
        ),
    ]


def _quotas(found: ProviderStats) -> list[Family]:
    used: list[Series] = [(_labels(each), each.used) for each in found.quotas]
    limits: list[Series] = [(_labels(each), each.limit) for each in found.quotas]
    text = "of the quota windows that are running, all tenants together."
    return [
        Family("ergon_provider_quota_used", "gauge", f"Units used {text}", used),
        Family("ergon_provider_quota_limit", "gauge", f"Units allowed {text}", limits),
    ]


def _calls(found: ProviderStats) -> list[Family]:
    ends: list[Series] = [
        ({**_labels(each), "outcome": outcome}, getattr(each, outcome))
        for each in found.ended
        for outcome in _OUTCOMES
    ]
    attempts: list[Series] = [(_labels(each), each.attempts) for each in found.ended]
    return [
        Family(
            "ergon_provider_calls_1h",
            "gauge",
            "Calls that ended in the last hour, by outcome; from one-minute roll-ups.",
            ends,
        ),
        Family(
            "ergon_provider_attempts_1h",
            "gauge",
            "Attempts of the last hour, failed ones included; from one-minute roll-ups.",
            attempts,
        ),
    ]


def _reasons(found: ProviderStats) -> Family:
    return Family(
        "ergon_provider_attempts_5m",
        "gauge",
        "Attempts of the last five minutes, and calls that a gate refused, by reason;"
        " none for those that succeeded.",
        [({**_labels(each), "reason": each.what or "none"}, each.number) for each in found.reasons],
    )


def _labels(each: LaneCount | QuotaTotals | CallTotals) -> Mapping[str, str]:
    return {"provider": each.provider_name, "capability": each.capability}


def zone_metrics(source: ZoneBackend) -> list[Family]:
    """The metrics of a zone, from its status."""
    status = source.status()
    zone = {"zone": source.name}
    return [
        *_of_logs(zone, status["logs"]),
        *_of_consumers(zone, status["consumers"], status["now_unix_ms"]),
        *_of_links(zone, [link for link in status["links"] if link["peer"]]),
        _gauge(
            "ergon_zone_quarantined", "Facts that are set aside.", [(zone, status["quarantined"])]
        ),
        _gauge(
            "ergon_zone_lost_facts", "Facts given up on purpose.", [(zone, status["lost_facts"])]
        ),
        _gauge(
            "ergon_zone_alerts", "What a person should look at.", [(zone, len(status["alerts"]))]
        ),
        _gauge(
            "ergon_zone_by_node",
            "1 when the node itself told this, 0 when its folder was looked into.",
            [(zone, int(status["source"] == "node"))],
        ),
    ]


def _of_logs(zone: Mapping[str, str], logs: Iterable[Mapping[str, Any]]) -> list[Family]:
    named = [({**zone, "log": log["log"]}, log) for log in logs]
    return [
        _gauge(
            "ergon_zone_head_offset",
            "The highest offset of a log.",
            [(labels, log["head_offset"]) for labels, log in named],
        ),
        _gauge(
            "ergon_zone_log_bytes",
            "Payload kept in a log.",
            [(labels, log["bytes"]) for labels, log in named],
        ),
    ]


def _of_consumers(
    zone: Mapping[str, str], consumers: Iterable[Mapping[str, Any]], now: int
) -> list[Family]:
    named = [({**zone, "consumer": each["consumer_name"]}, each) for each in consumers]
    waits = [(labels, each.get("waiting_since_unix_ms")) for labels, each in named]
    return [
        _gauge(
            "ergon_zone_consumer_lag",
            "Facts that wait for a consumer.",
            [(labels, each["lag"]) for labels, each in named],
        ),
        _gauge(
            "ergon_zone_consumer_waiting_seconds",
            "How long the oldest of them has waited; 0 when none does.",
            [
                (labels, 0.0 if since is None else max(0.0, (now - since) / 1000))
                for labels, since in waits
            ],
        ),
    ]


def _of_links(zone: Mapping[str, str], links: Iterable[Mapping[str, Any]]) -> list[Family]:
    named = [({**zone, "peer": link["peer"]}, link) for link in links]
    known = [(labels, link) for labels, link in named if link.get("mode") is not None]
    return [
        _gauge(
            "ergon_zone_link_sealed",
            "1 for a link that an operator has shut.",
            [(labels, int(link["sealed"])) for labels, link in named],
        ),
        _gauge(
            "ergon_zone_link_mode",
            "1 for the mode of a link; only its node knows it.",
            [
                ({**labels, "mode": mode.value}, int(link["mode"] == mode.value))
                for labels, link in known
                for mode in Mode
            ],
        ),
        _gauge(
            "ergon_zone_link_lag_seconds",
            "How far behind the peer's log this zone is; only its node knows it.",
            [(labels, float(link.get("lag_seconds") or 0.0)) for labels, link in known],
        ),
    ]


def _gauge(name: str, text: str, series: list[Series]) -> Family:
    return Family(name, "gauge", text, series)


class MetricQuestion(NamedTuple):
    """One query to one backend."""

    ask: Callable[[], Sequence[Exposed]]
    known: Callable[[], Sequence[Exposed]] = tuple
    """What is exposed from the last answer while the backend does not answer."""


Questions = dict[str, MetricQuestion]


def metric_routes(pool: BackendPool) -> APIRouter:
    """The route that Prometheus scrapes."""
    router = APIRouter(tags=["metrics"])
    scraper = _Scraper(pool)

    @router.get(
        "/metrics",
        summary="How everything stands, for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """The metrics, in the text format of Prometheus. A backend that does not answer has
        `ergon_part_up` 0.
        """
        text = exposed(await scraper.families())
        return Response(text, headers=NO_STORE, media_type=MEDIA_TYPE)

    return router


class _Scraper:
    """Queries all backends at once, and keeps what each answered last. Lives on an event loop."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._questions = _questions(pool.backends)
        self._errors: Counter[str] = Counter(dict.fromkeys(self._questions, 0))
        self._asked: dict[str, asyncio.Task[Sequence[Exposed]]] = {}
        self._answered: set[str] = set()

    async def families(self) -> list[Exposed]:
        """The families of all backends. For one that does not answer, those that are known from
        before.
        """
        answers = await asyncio.gather(*map(self._answer_or_none, self._questions))
        found = dict(zip(self._questions, answers, strict=True))
        families = [
            each
            for part, answer in found.items()
            for each in (self._questions[part].known() if answer is None else answer)
        ]
        return [*_of_parts(found, self._errors), *families]

    async def _answer_or_none(self, part: str) -> Sequence[Exposed] | None:
        try:
            return await self._answer(part)
        except Exception as error:
            if not isinstance(error, BackendUnavailableError):  # That error is in the log already.
                logger.warning("the metrics of %s cannot be told: %s", part, describe(error))
            self._errors[part] += 1
            return None

    async def _answer(self, part: str) -> Sequence[Exposed]:
        """The answer of a backend, in time. It is not queried again while a query is under way."""
        # A scrape that gave up leaves its task behind, and the next one waits for the same answer.
        # A task of another event loop, as a test client makes for each request, cannot be awaited
        # here.
        task = self._asked.get(part)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            ask = self._questions[part].ask
            task = self._asked[part] = asyncio.create_task(self._pool.call(part, ask))
            task.add_done_callback(_retrieve_exception)
        limit = SCRAPE_TIMEOUT if part in self._answered else None
        done, _ = await asyncio.wait({task}, timeout=limit)
        if not done:
            raise BackendUnavailableError(part, backend_title(part), StoreUnavailableError.code)
        found = task.result()
        self._answered.add(part)
        return found


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that is not awaited any more, because asyncio
    would log it.
    """
    if not task.cancelled():
        task.exception()


def _questions(backends: Backends) -> Questions:
    def each() -> Iterator[tuple[str, MetricQuestion]]:
        if backends.jobs is not None:
            jobs = JobCounters()
            yield (
                "jobs",
                MetricQuestion(partial(job_metrics, backends.jobs, jobs), lambda: jobs.known),
            )
        for name, store in backends.providers.items():
            yield name, _of_calls_in(store, CallCounters())
        for name, zone in backends.zones.items():
            yield zone_name(name), MetricQuestion(partial(zone_metrics, zone))

    return dict(each())


def _of_calls_in(store: ProviderBackend, counters: CallCounters) -> MetricQuestion:
    return MetricQuestion(partial(provider_metrics, store, counters), lambda: counters.known)


def _of_parts(found: Mapping[str, Sequence[Exposed] | None], errors: Counter[str]) -> list[Family]:
    up = [({"part": part}, int(answer is not None)) for part, answer in found.items()]
    failed = [({"part": part}, number) for part, number in errors.items()]
    return [
        Family("ergon_part_up", "gauge", "1 for a store or zone that answered, else 0.", up),
        Family(
            "ergon_scrape_errors_total",
            "counter",
            "Scrapes in which a part did not answer, since the server started.",
            failed,
        ),
    ]
