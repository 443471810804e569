"""Who races whom, and which ratio counts as good enough."""

from __future__ import annotations

from dataclasses import replace

from engine_parts import peers
from engine_parts.noop import Workload
from engine_parts.ours import US, engine
from engine_parts.rounds import Case, RatioTarget, Runner

TIMEOUT = 5.0
BOUNDED = f"{US}, step timeout"


def without_sdk() -> list[Case]:
    """Without a telemetry SDK."""
    cases = [_against_all(workload) for workload in _workloads()]
    cases.append(_small_batches())
    cases += [_bounded(concurrency) for concurrency in (1, 8)]
    return cases


def with_sdk(suffix: str) -> list[Case]:
    """With one. Only the package records spans too, and producers' metrics are the same code."""
    return [
        Case(
            f"{_name(workload)}+{suffix}",
            (engine(workload), peers.package(workload)),
            (_with_spans(workload),),
        )
        for workload in _workloads()
        if suffix == "sdk" or workload.role == "consume"
    ]


def _with_spans(workload: Workload) -> RatioTarget:
    # Consumers: start_processing, two steps, two attempts. Producers: two steps, two attempts.
    spans = 5 if workload.role == "consume" else 4
    return RatioTarget(peers.PACKAGE, 3.0, f">= 3 x with {spans} spans or more", spans)


def _workloads() -> list[Workload]:
    return [
        Workload(role, is_async, concurrency)
        for role in ("consume", "produce")
        for is_async in (False, True)
        for concurrency in (1, 8)
    ]


def _name(workload: Workload) -> str:
    return f"{workload.role}-{'async' if workload.is_async else 'sync'}-c{workload.concurrency}"


def _against_all(workload: Workload) -> Case:
    runners = (engine(workload), *_windows(workload), peers.package(workload))
    return Case(_name(workload), runners, _targets(workload))


def _windows(workload: Workload) -> tuple[Runner, ...]:
    if workload.is_async:
        return (peers.task_window(workload.concurrency, workload.batch),)
    return peers.thread_window(workload.concurrency), peers.permit_window(workload.concurrency)


def _targets(workload: Workload) -> tuple[RatioTarget, ...]:
    floors: dict[str, float] = {}
    if workload.is_async and workload.concurrency == 8:
        floors = {peers.TASK_WINDOW: 1.0, peers.PACKAGE: 10.0}
    elif not workload.is_async:
        many = workload.concurrency == 8
        floors = dict.fromkeys((peers.THREAD_WINDOW, peers.PERMIT_WINDOW), 3.0 if many else 5.0)
        if many:
            floors[peers.PACKAGE] = 15.0
    return tuple(RatioTarget(peer, floor, f">= {floor:g} x") for peer, floor in floors.items())


def _small_batches() -> Case:
    workload = Workload(batch=1)
    return Case("consume-sync-c1-batch1", (engine(workload), peers.package(workload)))


def _bounded(concurrency: int) -> Case:
    """A step timeout on every attempt, against the same engine without one."""
    free = Workload(concurrency=concurrency)
    bounded = replace(free, timeout=TIMEOUT)
    runners = (engine(bounded, BOUNDED), engine(free), peers.package(bounded))
    target = RatioTarget(US, 1 / 1.3, ">= 0.77 x (cost <= 1.3 x)")
    return Case(f"{_name(free)}-timeout", runners, (target,))
