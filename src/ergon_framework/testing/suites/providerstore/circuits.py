"""Checks of circuits and cooldowns.

A circuit is changed only by a caller that has seen its latest state. All callers of a lane wait for
its cooldown, and none waits for less than was asked.
"""

from __future__ import annotations

from msgspec.structs import replace

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.ports.providerstore import ALL_TENANTS, LaneFailure, LaneState
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
    FAILED,
    LANE,
    NEIGHBOURS,
    SUCCESS,
    ProviderStoreSubject,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def unknown_lane_is_fresh(s: ProviderStoreSubject) -> None:
    """A lane that nobody has written is closed, not cooling, and at version 0."""
    same(s.store.lane_state(LANE), LaneState(), "its standing")
    same(s.store.health(LANE.tenant_id), [], "the summary, after it was only asked about")


@check()
def first_swap_is_kept(s: ProviderStoreSubject) -> None:
    """The first circuit of a lane is written at version 0, which it leaves behind."""
    version = s.must_swap(0, s.opened())
    found = s.store.lane_state(LANE)
    same((found.breaker, found.cooldown_until), (s.opened(), 0.0), "circuit and cooldown")
    expect(version > 0, f"its version is {version}, as if nobody had written it")


@check()
def circuit_comes_back_whole(s: ProviderStoreSubject) -> None:
    """Every field of a circuit comes back as it was written, probes and their leases included."""
    version = 0
    circuits = (
        s.probing(),
        replace(s.opened(), generation=12),
        Breaker(failures=4, generation=13),
        replace(s.probing(), probes=()),
        Breaker(CircuitState.OPEN, 1, s.start - 0.125, generation=14),
        Breaker(CircuitState.OPEN, 0, s.start + 3600.5, generation=15, held_for=3600.5),
        Breaker(generation=16),
    )
    for circuit in circuits:
        version = s.must_swap(version, circuit)
        same(s.store.lane_state(LANE).breaker, circuit, "the circuit")


@check()
def every_swap_grows_the_version(s: ProviderStoreSubject) -> None:
    """Each swap has a version of its own, also one that writes what is there already."""
    versions = [0]
    for circuit in (s.opened(), s.opened(), s.probing(), Breaker(), Breaker()):
        versions.append(s.must_swap(versions[-1], circuit))
    expect(versions == sorted(set(versions)), f"the versions were {versions}")


@check()
def stale_swap_changes_nothing(s: ProviderStoreSubject) -> None:
    """Whoever has missed a swap is told so, and the circuit stays."""
    first = s.must_swap(0, s.opened())
    s.must_swap(first, s.probing())
    before = s.store.lane_state(LANE)
    same(s.store.compare_and_set(LANE, first, Breaker()), False, "the answer at the version before")
    same(s.store.compare_and_set(LANE, 0, Breaker()), False, "the answer at version 0")
    same(s.store.lane_state(LANE), before, "the standing")


@check()
def swap_ahead_changes_nothing(s: ProviderStoreSubject) -> None:
    """A version that the lane has not reached is as wrong as one it has left."""
    same(
        s.store.compare_and_set(LANE, 1, s.opened()),
        False,
        "the answer of a lane that nobody has written",
    )
    same(s.store.lane_state(LANE), LaneState(), "the standing of that lane")
    version = s.must_swap(0, s.opened())
    same(s.store.compare_and_set(LANE, version + 1, Breaker()), False, "the answer")
    same(s.store.lane_state(LANE).breaker, s.opened(), "the circuit")


@check()
def failure_comes_with_its_swap(s: ProviderStoreSubject) -> None:
    """Whoever sees the circuit changed by a failure sees which one it was."""
    first, last = (
        LaneFailure("timeout", s.start),
        LaneFailure("dependency_unavailable", s.start + 2.0),
    )
    for count, failed in enumerate((first, last), 1):
        version = s.store.lane_state(LANE).version
        is_done = s.store.compare_and_set(LANE, version, Breaker(failures=count), failed=failed)
        expect(is_done, "a swap was refused")
        same(s.lane().consecutive_failures, count, "consecutive_failures")
        same((s.lane().last_error_code, s.lane().last_error_at), failed, "the last error")
    s.must_swap(s.store.lane_state(LANE).version, Breaker())
    same((s.lane().last_error_code, s.lane().last_error_at), last, "after a success")


@check()
def failure_of_a_swap_does_not_hide_a_later_one(s: ProviderStoreSubject) -> None:
    """The latest failure is told, whoever writes last; a swap that is refused tells of none."""
    s.record(s.attempt(FAILED, reason_code="timeout", created_at=s.start + 5.0))
    known = ("timeout", s.start + 5.0)
    earlier, later = (
        LaneFailure("internal_error", s.start),
        LaneFailure("internal_error", s.start + 9.0),
    )
    expect(
        s.store.compare_and_set(LANE, 0, Breaker(failures=1), failed=earlier), "a swap was refused"
    )
    same((s.lane().last_error_code, s.lane().last_error_at), known, "after an earlier one")
    same(s.store.compare_and_set(LANE, 0, Breaker(failures=2), failed=later), False, "a stale swap")
    same((s.lane().last_error_code, s.lane().last_error_at), known, "after a stale swap")


@check()
def swap_keeps_the_cooldown(s: ProviderStoreSubject) -> None:
    """A circuit that is written leaves the lane's cooldown as it is."""
    s.store.extend_cooldown(LANE, s.start + 50.0)
    version = s.must_swap(s.store.lane_state(LANE).version, s.opened())
    same(s.store.lane_state(LANE).cooldown_until, s.start + 50.0, "after the first swap")
    s.must_swap(version, Breaker())
    same(s.store.lane_state(LANE).cooldown_until, s.start + 50.0, "after the second swap")


@check()
def cooling_spoils_no_swap(s: ProviderStoreSubject) -> None:
    """A cooldown that comes between reading a circuit and writing it does not matter."""
    s.store.extend_cooldown(LANE, s.start + 10.0)
    version = s.must_swap(0, s.opened())
    s.store.extend_cooldown(LANE, s.start + 20.0)
    s.must_swap(version, s.probing())


@check()
def recording_spoils_no_swap(s: ProviderStoreSubject) -> None:
    """Attempts on record change neither a circuit nor its version."""
    s.ran(FAILED)
    same(s.store.lane_state(LANE), LaneState(), "the standing of a lane that only has attempts")
    s.must_swap(0, s.probing())
    before = s.store.lane_state(LANE)
    s.ran(FAILED)
    same(s.store.lane_state(LANE), before, "the standing")


@check()
def circuits_are_apart(s: ProviderStoreSubject) -> None:
    """Tenants, providers and capabilities share no circuit, and nobody has the one of everybody."""
    s.must_swap(0, s.opened())
    for key in (*NEIGHBOURS, LANE._replace(tenant_id=ALL_TENANTS)):
        same(s.store.lane_state(key), LaneState(), f"the standing of {key}")
        s.must_swap(0, s.probing(), key)
    same(s.store.lane_state(LANE).breaker, s.opened(), "the circuit")


@check()
def summary_tells_the_circuit(s: ProviderStoreSubject) -> None:
    """The summary has a circuit as it was written last."""
    version = 0
    for circuit in (s.opened(7), s.probing(), Breaker(failures=2), Breaker()):
        version = s.must_swap(version, circuit)
        lane = s.lane()
        found = lane.breaker_state, lane.consecutive_failures, lane.open_until
        same(found, (circuit.state.value, circuit.failures, circuit.open_until), "the summary")


@check()
def cooldown_is_told_to_all(s: ProviderStoreSubject) -> None:
    """A cooldown is answered with, and is part of the lane's standing and of the summary."""
    until = s.start + 12.25
    same(s.store.extend_cooldown(LANE, until), until, "the answer")
    same(s.store.lane_state(LANE).cooldown_until, until, "the standing")
    same(s.lane().cooldown_until, until, "the summary")


@check()
def cooldown_is_never_shortened(s: ProviderStoreSubject) -> None:
    """An earlier instant changes nothing, and the answer is the one that holds."""
    until = s.start + 90.5
    s.store.extend_cooldown(LANE, until)
    for earlier in (s.start + 90.25, s.start + 1.0, s.start - 60.0):
        same(s.store.extend_cooldown(LANE, earlier), until, "the answer to an earlier instant")
    same(s.store.lane_state(LANE).cooldown_until, until, "the standing")


@check()
def cooldown_is_prolonged(s: ProviderStoreSubject) -> None:
    """A later instant takes the place of the one before."""
    for seconds in (10.0, 10.25, 600.0, 90_000.0):
        same(s.store.extend_cooldown(LANE, s.start + seconds), s.start + seconds, "the answer")
    same(s.store.lane_state(LANE).cooldown_until, s.start + 90_000.0, "the standing")


@check()
def cooling_keeps_the_circuit(s: ProviderStoreSubject) -> None:
    """A cooldown leaves the circuit and its version as they are."""
    version = s.must_swap(0, s.probing())
    s.store.extend_cooldown(LANE, s.start + 5.0)
    found = s.store.lane_state(LANE)
    same((found.breaker, found.version), (s.probing(), version), "circuit and version")


@check()
def recording_keeps_the_cooldown(s: ProviderStoreSubject) -> None:
    """A success that comes in late does not end a cooldown."""
    s.store.extend_cooldown(LANE, s.start + 5.0)
    s.ran(SUCCESS)
    same(s.store.lane_state(LANE).cooldown_until, s.start + 5.0, "the standing")


@check()
def cooldowns_are_apart(s: ProviderStoreSubject) -> None:
    """Tenants, providers and capabilities share no cooldown."""
    s.store.extend_cooldown(LANE, s.start + 60.0)
    for key in NEIGHBOURS:
        same(s.store.lane_state(key).cooldown_until, 0.0, f"the cooldown of {key}")
        same(s.store.extend_cooldown(key, s.start + 5.0), s.start + 5.0, f"the answer about {key}")
    same(s.store.lane_state(LANE).cooldown_until, s.start + 60.0, "the cooldown")
