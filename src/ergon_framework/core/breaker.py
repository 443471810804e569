"""A circuit breaker: closed, open, half-open, as state and arithmetic.

Whoever keeps the state says what time it is and swaps the old state for the new one; nobody holds
it while a call runs. A call that was let in carries a permit, and a report whose permit belongs to
an earlier generation changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

PROBE_PATIENCE = 1.0
"""Seconds after which to ask again at a circuit whose probes are under way."""


class State(StrEnum):
    """How a circuit stands. The values are what the tables hold."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Vote(StrEnum):
    """What the end of a call says about the other side."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"  # nothing: our mistake, or a refusal that proves it alive but is no answer


@dataclass(frozen=True, slots=True)
class BreakerRule:
    """When a circuit opens, for how long, and what closes it."""

    failure_threshold: int = 5
    """Failures in a row that open it."""
    open_cooldown: float = 30.0
    """Seconds it stays open before it lets probes in."""
    half_open_max_calls: int = 1
    """Probes under way at once."""
    half_open_success_threshold: int = 1
    """Probes that must succeed before it closes."""
    probe_lease: float = 30.0
    """Seconds after which a probe that never reported gives its place back."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One place of a half-open circuit that is taken."""

    token: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Permit:
    """A call was let in."""

    generation: int
    token: str = ""
    """Of a probe; empty for a call through a closed circuit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call was not let in, and when it is worth asking again."""

    retry_at: float


@dataclass(frozen=True, slots=True)
class Breaker:
    """One circuit. Each event answers with the circuit as it is from then on."""

    state: State = State.CLOSED
    failures: int = 0
    """Failures in a row."""
    open_until: float | None = None
    successes: int = 0
    """Probes that succeeded since it became half-open."""
    probes: tuple[Probe, ...] = ()
    generation: int = 0
    """Grows with every change of state: a report from before it is void."""
    held_for: float = 0.0
    """Seconds that an operator wants it open for; the rule does not shorten them. 0: the rule's."""

    def peek(self, rule: BreakerRule, now: float) -> Refusal | None:
        """Whether a call would be refused now; changes nothing and promises nothing."""
        if self.state is State.CLOSED:
            return None
        if self.state is State.OPEN:
            until = self._open_until(rule, now)
            return Refusal(until) if now < until else None
        taken = self.live_probes(rule, now)
        return _full(taken, now) if len(taken) >= rule.half_open_max_calls else None

    def admit(self, rule: BreakerRule, token: str, now: float) -> tuple[Breaker, Permit | Refusal]:
        """Let a call in, as a probe under ``token`` unless the circuit is closed, or refuse it."""
        if self.state is State.CLOSED:
            return self, Permit(self.generation)
        if self.state is State.OPEN:
            until = self._open_until(rule, now)
            if now < until:
                return self.shortened(rule, now), Refusal(until)
            return _probe(self._half_open(), rule, token, now)
        return _probe(self, rule, token, now)

    def report(self, rule: BreakerRule, permit: Permit, vote: Vote, now: float) -> Breaker:
        """The circuit after a call that was let in has ended, or was given up."""
        if permit.generation != self.generation:
            return self
        if self.state is State.CLOSED:
            return self._counted(rule, vote, now)
        if self.state is State.HALF_OPEN:
            return self._probed(rule, permit, vote, now)
        return self

    def shortened(self, rule: BreakerRule, now: float) -> Breaker:
        """As it stands at most from now on, which somebody has to keep.

        A clock that was set back must not keep a circuit open, or a place taken, for longer than
        it ever was to be.
        """
        if self.state is State.OPEN:
            until = self._open_until(rule, now)
            return self if until == self.open_until else replace(self, open_until=until)
        if all(probe.expires_at <= now + rule.probe_lease for probe in self.probes):
            return self
        return replace(self, probes=self.live_probes(rule, now))

    def told(self, now: float) -> Breaker:
        """As people are told that it stands: one whose cooldown is over would let a probe in.

        Nothing is kept of it. Only a call changes the circuit, and there may be none for long.
        """
        is_over = self.open_until is not None and now >= self.open_until
        if self.state is not State.OPEN or not is_over:
            return self
        return Breaker(State.HALF_OPEN, self.failures, generation=self.generation)

    def restored(self, rule: BreakerRule, now: float) -> Breaker:
        """As a process finds it that just started: nobody is left to report for old probes."""
        if self.state is State.CLOSED:
            return self
        if self.state is State.OPEN and now < self._open_until(rule, now):
            return replace(self, open_until=self._open_until(rule, now))
        return replace(
            self, state=State.HALF_OPEN, open_until=None, probes=(), successes=0, held_for=0.0
        )

    def forced(self, rule: BreakerRule, state: State, now: float, seconds: float = 0.0) -> Breaker:
        """As an operator wants it: open for so many seconds, or for the rule's if not said."""
        if state is State.OPEN:
            opened = self._opened(rule, now, self.failures)
            return (
                replace(opened, open_until=now + seconds, held_for=seconds) if seconds else opened
            )
        return Breaker(state, generation=self.generation + 1)

    def _counted(self, rule: BreakerRule, vote: Vote, now: float) -> Breaker:
        if vote is Vote.NEUTRAL:
            return self
        if vote is Vote.SUCCESS:
            return replace(self, failures=0) if self.failures else self
        failures = self.failures + 1
        if failures >= rule.failure_threshold:
            return self._opened(rule, now, failures)
        return replace(self, failures=failures)

    def _probed(self, rule: BreakerRule, permit: Permit, vote: Vote, now: float) -> Breaker:
        left = tuple(probe for probe in self.probes if probe.token != permit.token)
        if len(left) == len(self.probes):
            return self  # its lease ran out, and its place went to somebody else
        if vote is Vote.FAILURE:
            return self._opened(rule, now, self.failures + 1)
        if vote is Vote.NEUTRAL:
            return replace(self, probes=left)
        successes = self.successes + 1
        if successes >= rule.half_open_success_threshold:
            return Breaker(generation=self.generation + 1)
        return replace(self, probes=left, successes=successes)

    def _opened(self, rule: BreakerRule, now: float, failures: int) -> Breaker:
        until = now + rule.open_cooldown
        return Breaker(State.OPEN, failures, until, generation=self.generation + 1)

    def _half_open(self) -> Breaker:
        return Breaker(State.HALF_OPEN, self.failures, generation=self.generation + 1)

    def live_probes(self, rule: BreakerRule, now: float) -> tuple[Probe, ...]:
        """The places that are taken, without those whose lease has run out."""
        latest = now + rule.probe_lease  # … and no lease grows when the clock is set back
        return tuple(
            probe if probe.expires_at <= latest else Probe(probe.token, latest)
            for probe in self.probes
            if probe.expires_at > now
        )

    def _open_until(self, rule: BreakerRule, now: float) -> float:
        latest = now + (self.held_for or rule.open_cooldown)
        return latest if self.open_until is None else min(self.open_until, latest)


def _probe(
    circuit: Breaker, rule: BreakerRule, token: str, now: float
) -> tuple[Breaker, Permit | Refusal]:
    taken = circuit.live_probes(rule, now)
    if len(taken) >= rule.half_open_max_calls:
        kept = circuit if taken == circuit.probes else replace(circuit, probes=taken)
        return kept, _full(taken, now)
    probe = Probe(token, now + rule.probe_lease)
    return replace(circuit, probes=(*taken, probe)), Permit(circuit.generation, token)


def _full(taken: tuple[Probe, ...], now: float) -> Refusal:
    """All places are taken; a probe mostly ends long before its lease, so look again soon."""
    return Refusal(min(now + PROBE_PATIENCE, *(probe.expires_at for probe in taken)))
