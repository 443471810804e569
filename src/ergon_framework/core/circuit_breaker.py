"""A circuit breaker: closed, open, half-open, as state and arithmetic.

The caller keeps the state, passes the time, and swaps the old state for the new one; it is not
locked while a call runs. A call that was let in carries a permit, and a report whose permit belongs
to an earlier generation changes nothing.

Several processes share a circuit, and a success is written only by a process that knows of failures
before it. So a process that reports a failure says when it last saw a success: earlier failures do
not count. And while other processes reported lately, a burst of failures has to last until each of
them could have read it, and cleared it, before it opens the circuit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

PROBE_RETRY_DELAY = 1.0
"""Seconds after which to ask again at a circuit whose probes are under way."""


REPORTER_TIMEOUT = 60.0
"""Seconds for which a process that wrote the circuit counts as one that uses it."""

_MAX_REPORTERS = 8

NEVER = float("-inf")


class CircuitState(StrEnum):
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
    confirm_after: float = 1.25
    """Seconds that failures in a row must have lasted before they open a circuit that other
    processes use too: by then all of those have read the failures, and would have written a
    success.
    """


class ProbeLease(msgspec.Struct, frozen=True):
    """A probe of a half-open circuit, which holds its place until the lease ends."""

    token: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class Permit:
    """A call was let in."""

    generation: int
    token: str = ""
    """The token of a probe; empty for a call through a closed circuit."""


class Reporter(msgspec.Struct, frozen=True):
    """A process that reports, and when it last saw a call succeed, by the clock of the circuit."""

    name: str = ""
    succeeded_at: float = NEVER


UNKNOWN_REPORTER = Reporter()


class CircuitRefusal(msgspec.Struct, frozen=True):
    """A call was not let in, and when it is worth asking again."""

    retry_at: float


class Breaker(msgspec.Struct, frozen=True):
    """The state of a circuit. Each event returns the state that follows."""

    state: CircuitState = CircuitState.CLOSED
    failures: int = 0
    """Failures in a row."""
    open_until: float | None = None
    successes: int = 0
    """Probes that succeeded since it became half-open."""
    probes: tuple[ProbeLease, ...] = ()
    generation: int = 0
    """Grows with every change of state: a report from before it is void."""
    held_for: float = 0.0
    """Seconds that an operator wants it open for; the rule does not shorten them. 0: the rule's."""
    streak: tuple[float, ...] = ()
    """When the latest of the failures in a row were, at most as many as open it."""
    streak_since: float | None = None
    """When the first of them was."""
    heard: tuple[tuple[str, float], ...] = ()
    """The processes that wrote it lately, and when."""

    def peek(self, rule: BreakerRule, now: float) -> CircuitRefusal | None:
        """Whether a call would be refused now; changes nothing and promises nothing."""
        if self.state is CircuitState.CLOSED:
            return None
        if self.state is CircuitState.OPEN:
            until = self._open_until(rule, now)
            return CircuitRefusal(until) if now < until else None
        taken = self.live_probes(rule, now)
        return _full(taken, now) if len(taken) >= rule.half_open_max_calls else None

    def admit(
        self, rule: BreakerRule, token: str, now: float
    ) -> tuple[Breaker, Permit | CircuitRefusal]:
        """Let a call in, as a probe under ``token`` unless the circuit is closed, or refuse it."""
        if self.state is CircuitState.CLOSED:
            return self, Permit(self.generation)
        if self.state is CircuitState.OPEN:
            until = self._open_until(rule, now)
            if now < until:
                # Answered with the shortened circuit, so that the caller stores it: a clock that
                # was set back is healed by the first call that it refuses.
                return self.shortened(rule, now), CircuitRefusal(until)
            return _probe(self._half_open(), rule, token, now)
        return _probe(self, rule, token, now)

    def report(
        self,
        rule: BreakerRule,
        permit: Permit,
        vote: Vote,
        now: float,
        by: Reporter = UNKNOWN_REPORTER,
    ) -> Breaker:
        """The circuit after a call that was let in has ended, or was given up."""
        # The circuit has changed its state since this call was let in. What it saw belongs to the
        # state before: a failure that began before the circuit opened must not close or reopen it.
        if permit.generation != self.generation:
            return self
        if self.state is CircuitState.CLOSED:
            return self._counted(rule, vote, now, by)
        if self.state is CircuitState.HALF_OPEN:
            return self._probed(rule, permit, vote, now)
        return self

    def with_report_of(self, by: Reporter) -> Breaker:
        """Without the failures that came before a success that a process saw."""
        if (
            self.state is not CircuitState.CLOSED
            or not self.streak
            or by.succeeded_at <= self._since
        ):
            return self
        # Failures after that success stay: they are a streak of their own.
        left = tuple(at for at in self.streak if at >= by.succeeded_at)
        since = left[0] if left else None
        return replace(self, failures=len(left), streak=left, streak_since=since)

    @property
    def _since(self) -> float:
        return self.streak[0] if self.streak_since is None else self.streak_since

    def renewed(self, rule: BreakerRule, permit: Permit, now: float) -> Breaker:
        """With a fresh lease for a probe that is still under way."""
        if permit.generation != self.generation:
            return self
        fresh = ProbeLease(permit.token, now + rule.probe_lease)
        probes = tuple(fresh if probe.token == permit.token else probe for probe in self.probes)
        return self if probes == self.probes else replace(self, probes=probes)

    def shortened(self, rule: BreakerRule, now: float) -> Breaker:
        """With its times cut to what they can be from now on; the caller has to store it.

        A clock that was set back must not keep a circuit open, or a place taken, for longer than
        it ever was to be.
        """
        if self.state is CircuitState.OPEN:
            until = self._open_until(rule, now)
            return self if until == self.open_until else replace(self, open_until=until)
        # No lease can be longer than a fresh one, unless the clock went back.
        if all(probe.expires_at <= now + rule.probe_lease for probe in self.probes):
            return self
        return replace(self, probes=self.live_probes(rule, now))

    def observed(self, now: float) -> Breaker:
        """The circuit as it is shown to people: one whose cooldown is over would let a probe in.

        This state is not stored. Only a call changes a circuit, and there may be no call for a long
        time.
        """
        is_over = self.open_until is not None and now >= self.open_until
        if self.state is not CircuitState.OPEN or not is_over:
            return self
        return Breaker(CircuitState.HALF_OPEN, self.failures, generation=self.generation)

    def restored(self, rule: BreakerRule, now: float) -> Breaker:
        """The circuit for a process that has just started, without the probes of an earlier one."""
        if self.state is CircuitState.CLOSED:
            return self
        if self.state is CircuitState.OPEN and now < self._open_until(rule, now):
            return replace(self, open_until=self._open_until(rule, now))
        # Half-open at once: a process that starts anew has nothing under way, and probes of the one
        # before it would hold their places until their leases end.
        return replace(
            self,
            state=CircuitState.HALF_OPEN,
            open_until=None,
            probes=(),
            successes=0,
            held_for=0.0,
        )

    def forced(
        self, rule: BreakerRule, state: CircuitState, now: float, seconds: float = 0.0
    ) -> Breaker:
        """The circuit as an operator sets it: open for so many seconds, or for those of the
        rule.
        """
        if state is CircuitState.OPEN:
            opened = self._opened(rule, now, self.failures)
            return (
                replace(opened, open_until=now + seconds, held_for=seconds) if seconds else opened
            )
        # A new generation even where the state stays the same: reports of calls from before the
        # operator's decision are void.
        return Breaker(state, generation=self.generation + 1)

    def _counted(self, rule: BreakerRule, vote: Vote, now: float, by: Reporter) -> Breaker:
        if vote is Vote.NEUTRAL:
            return self
        heard = self._heard(by, now)
        if vote is Vote.SUCCESS:
            return _with_streak(self, 0, (), None, heard) if self.failures else self
        # This process may have seen a success that the shared circuit has not heard of, because
        # successes are not written one by one.
        before = self.with_report_of(by)
        failures = before.failures + 1
        # Only as many as can matter: the row of a circuit must not grow with an outage.
        streak = (*before.streak, now)[-rule.failure_threshold :]
        since = now if before.streak_since is None else min(before.streak_since, now)
        is_enough = failures >= rule.failure_threshold
        # With a threshold of one there is nothing to confirm: the rule says that a single failure
        # is enough.
        if is_enough and (rule.failure_threshold == 1 or before.is_confirmed(rule, since, by, now)):
            return self._opened(rule, now, failures)
        return _with_streak(before, failures, streak, since, heard)

    def is_confirmed(self, rule: BreakerRule, since: float, by: Reporter, now: float) -> bool:
        """Whether no other process can know of a success since ``since``, when failures began."""
        others = (
            name for name, at in self.heard if name != by.name and now - at < REPORTER_TIMEOUT
        )
        return now - since >= rule.confirm_after or not any(others)

    def _heard(self, by: Reporter, now: float) -> tuple[tuple[str, float], ...]:
        if not by.name:
            return self.heard
        if len(self.heard) == 1 and self.heard[0][0] == by.name:  # as where no process shares it
            return ((by.name, now),)
        kept = [
            # ``0 <=``: an entry from the future was written before the clock was set back.
            (n, at)
            for n, at in self.heard
            if n != by.name and 0 <= now - at < REPORTER_TIMEOUT
        ]
        # A bound on a stored tuple: a fleet of short-lived processes would fill the row.
        return (*kept[1 - _MAX_REPORTERS :], (by.name, now))

    def _probed(self, rule: BreakerRule, permit: Permit, vote: Vote, now: float) -> Breaker:
        left = tuple(probe for probe in self.probes if probe.token != permit.token)
        if len(left) == len(self.probes):
            return self  # its lease ran out, and its place went to another probe
        if vote is Vote.FAILURE:
            # One failed probe is enough: the provider was given the cooldown, and a second probe
            # would only hit it again.
            return self._opened(rule, now, self.failures + 1)
        # A probe that was cancelled or refused says nothing about the provider; only its place is
        # free again.
        if vote is Vote.NEUTRAL:
            return replace(self, probes=left)
        successes = self.successes + 1
        if successes >= rule.half_open_success_threshold:
            return Breaker(generation=self.generation + 1)
        return replace(self, probes=left, successes=successes)

    def _opened(self, rule: BreakerRule, now: float, failures: int) -> Breaker:
        until = now + rule.open_cooldown
        return Breaker(CircuitState.OPEN, failures, until, generation=self.generation + 1)

    def _half_open(self) -> Breaker:
        return Breaker(CircuitState.HALF_OPEN, self.failures, generation=self.generation + 1)

    def live_probes(self, rule: BreakerRule, now: float) -> tuple[ProbeLease, ...]:
        """The probes that hold a place, without those whose lease has ended."""
        latest = now + rule.probe_lease  # … and no lease grows when the clock is set back
        return tuple(
            probe if probe.expires_at <= latest else ProbeLease(probe.token, latest)
            for probe in self.probes
            if probe.expires_at > now
        )

    def _open_until(self, rule: BreakerRule, now: float) -> float:
        latest = now + (self.held_for or rule.open_cooldown)
        return latest if self.open_until is None else min(self.open_until, latest)


def _with_streak(
    circuit: Breaker,
    failures: int,
    streak: tuple[float, ...],
    since: float | None,
    heard: tuple[tuple[str, float], ...],
) -> Breaker:
    # By position: ``replace`` takes its names one by one.
    return Breaker(
        circuit.state,
        failures,
        circuit.open_until,
        circuit.successes,
        circuit.probes,
        circuit.generation,
        circuit.held_for,
        streak,
        since,
        heard,
    )


def _probe(
    circuit: Breaker, rule: BreakerRule, token: str, now: float
) -> tuple[Breaker, Permit | CircuitRefusal]:
    taken = circuit.live_probes(rule, now)
    if len(taken) >= rule.half_open_max_calls:
        kept = circuit if taken == circuit.probes else replace(circuit, probes=taken)
        return kept, _full(taken, now)
    probe = ProbeLease(token, now + rule.probe_lease)
    return replace(circuit, probes=(*taken, probe)), Permit(circuit.generation, token)


def _full(taken: tuple[ProbeLease, ...], now: float) -> CircuitRefusal:
    """All places are taken; a probe mostly ends long before its lease, so look again soon."""
    # ``min`` with the delay: callers come back soon, and do not all wait for the lease of a probe
    # that ends in milliseconds.
    return CircuitRefusal(min(now + PROBE_RETRY_DELAY, *(probe.expires_at for probe in taken)))
