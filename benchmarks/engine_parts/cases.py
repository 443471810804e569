"""Who races whom, and which ratio counts as good enough."""

from __future__ import annotations

from dataclasses import replace

from engine_parts import peers
from engine_parts.noop import Shape
from engine_parts.ours import US, engine
from engine_parts.rounds import Case, Contestant, Goal

TIMEOUT = 5.0
BOUNDED = f"{US}, step timeout"


def plain() -> list[Case]:
    """Without a telemetry SDK."""
    cases = [_against_all(shape) for shape in _shapes()]
    cases.append(_small_batches())
    cases += [_bounded(concurrency) for concurrency in (1, 8)]
    return cases


def recorded(suffix: str) -> list[Case]:
    """With one. Only the package records spans too, and producers' metrics are the same code."""
    return [
        Case(
            f"{_name(shape)}+{suffix}", (engine(shape), peers.package(shape)), (_with_spans(shape),)
        )
        for shape in _shapes()
        if suffix == "sdk" or shape.role == "consume"
    ]


def _with_spans(shape: Shape) -> Goal:
    # Consumers: start_processing, two steps, two attempts. Producers: two steps, two attempts.
    spans = 5 if shape.role == "consume" else 4
    return Goal(peers.PACKAGE, 3.0, f">= 3 x with {spans} spans or more", spans)


def _shapes() -> list[Shape]:
    return [
        Shape(role, is_async, concurrency)
        for role in ("consume", "produce")
        for is_async in (False, True)
        for concurrency in (1, 8)
    ]


def _name(shape: Shape) -> str:
    return f"{shape.role}-{'async' if shape.is_async else 'sync'}-c{shape.concurrency}"


def _against_all(shape: Shape) -> Case:
    contestants = (engine(shape), *_windows(shape), peers.package(shape))
    return Case(_name(shape), contestants, _goals(shape))


def _windows(shape: Shape) -> tuple[Contestant, ...]:
    if shape.is_async:
        return (peers.task_window(shape.concurrency, shape.batch),)
    return peers.thread_window(shape.concurrency), peers.permit_window(shape.concurrency)


def _goals(shape: Shape) -> tuple[Goal, ...]:
    floors: dict[str, float] = {}
    if shape.is_async and shape.concurrency == 8:
        floors = {peers.TASK_WINDOW: 1.0, peers.PACKAGE: 10.0}
    elif not shape.is_async:
        many = shape.concurrency == 8
        floors = dict.fromkeys((peers.THREAD_WINDOW, peers.PERMIT_WINDOW), 3.0 if many else 5.0)
        if many:
            floors[peers.PACKAGE] = 15.0
    return tuple(Goal(peer, floor, f">= {floor:g} x") for peer, floor in floors.items())


def _small_batches() -> Case:
    shape = Shape(batch=1)
    return Case("consume-sync-c1-batch1", (engine(shape), peers.package(shape)))


def _bounded(concurrency: int) -> Case:
    """A step timeout on every attempt, against the same engine without one."""
    free = Shape(concurrency=concurrency)
    bounded = replace(free, timeout=TIMEOUT)
    contestants = (engine(bounded, BOUNDED), engine(free), peers.package(bounded))
    goal = Goal(US, 1 / 1.3, ">= 0.77 x (cost <= 1.3 x)")
    return Case(f"{_name(free)}-timeout", contestants, (goal,))
