"""One lane's circuit in a store, which every process that opens the store shares.

A ``Circuit`` keeps a view of the state and reads it again after a second. It changes the state by
compare-and-set. While the store is away the process decides by its own view, and writes what it
learned when the store is back. When a circuit is half open, a call holds its place as a probe by a
lease, which ``ProbeRenewer`` renews while the call is under way.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import Parameter, signature
from time import monotonic
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from ergon_framework.core.circuit_breaker import (
    NEVER,
    Breaker,
    BreakerRule,
    CircuitRefusal,
    CircuitState,
    Permit,
    Reporter,
    Vote,
)
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import StoreError
from ergon_framework.ports.notice import Emit
from ergon_framework.ports.providerstore import (
    LaneFailure,
    LaneKey,
    LaneState,
    ProviderStore,
    ShortensCooldowns,
)
from ergon_framework.providers.threads import BoundedThreads
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.deadlines import PROVIDER_BUDGET

PROBE_LEASE = 5.0
"""Seconds that a probe in a shared store holds its place without being renewed."""

MAX_PROBE = 3600.0
"""Seconds for which the lease of a probe is renewed whose call has no timeout budget."""

_RENEWALS_PER_LEASE = 3
"""A lease is renewed when a third of it is over, so that one renewal may fail."""


class RenewableProbe(Protocol):
    """A circuit, as far as the renewer needs it."""

    def renew_probe(self, permit: Permit) -> bool:
        """Extend the lease of a probe; returns whether it still has its place."""


@dataclass(slots=True)
class _KeptProbe:
    circuit: RenewableProbe
    permit: Permit
    lease: float
    due_at: float
    until: float


class ProbeRenewer:
    """Renews the leases of this process's probes, on one thread. Any thread may call any method."""

    def __init__(
        self, ticks: Callable[[], float] = time.monotonic, *, has_thread: bool = True
    ) -> None:
        """Without a thread it renews only when :meth:`renew_due` is called, as tests do."""
        self._ticks = ticks
        self._has_thread = has_thread
        self.renew()

    def renew(self) -> None:
        """Called in a forked child: forget the probes, which the parent renews."""
        self._kept: dict[str, _KeptProbe] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, circuit: RenewableProbe, permit: Permit, lease: float, longest: float) -> None:
        """Renew a probe's lease from now on, for at most ``longest`` seconds."""
        now = self._ticks()
        kept = _KeptProbe(circuit, permit, lease, now + lease / _RENEWALS_PER_LEASE, now + longest)
        with self._changed:
            self._kept[permit.token] = kept
            if self._has_thread and self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ergon-probes", daemon=True)
        with contextlib.suppress(RuntimeError):  # there are too many: the next probe tries again
            thread.start()
            self._thread = thread

    def forget(self, token: str) -> None:
        """Stop renewing a probe whose call has ended."""
        # Without the lock: most calls are no probes, and each of them comes by here.
        if self._kept:
            with self._changed:
                self._kept.pop(token, None)

    def renew_due(self) -> float | None:
        """Renew what is due; the seconds until the next is, None when there are no probes."""
        now = self._ticks()
        with self._changed:
            due = [each for each in self._kept.values() if each.due_at <= now]
        # Without the lock: calls take it to report their end, and a store may hang.
        for each in due:
            is_held = now < each.until and _renewed(each)
            # From now, not from when it was due: a store that was slow must not be asked in a row.
            each.due_at = self._ticks() + each.lease / _RENEWALS_PER_LEASE
            if not is_held:
                self.forget(each.permit.token)
        with self._changed:
            return min((each.due_at - self._ticks() for each in self._kept.values()), default=None)

    def _run(self) -> None:
        while True:
            wait = self.renew_due()
            with self._changed:
                # Looked at under the lock: a probe that was kept in between would have no thread.
                if wait is None and not self._kept:
                    self._thread = None
                    return
                self._changed.wait(max(0.01, wait or 0.0))


def _renewed(kept: _KeptProbe) -> bool:
    try:
        return kept.circuit.renew_probe(kept.permit)
    except StoreError:
        return True  # the store may answer next time; the lease lasts for two more renewals


PROBE_RENEWER = ProbeRenewer()
"""The renewer of this process."""
os.register_at_fork(after_in_child=PROBE_RENEWER.renew)


T = TypeVar("T")

FRESH_FOR = 1.0
"""Seconds after which a circuit reads the store again."""

STORE_TIMEOUT = 0.5
"""Seconds that a call waits for the store to read or write a circuit, by default."""

REFRESH_THREADS = BoundedThreads("ergon-gates", 4)
"""Read the state of circuits from a store that hangs, so that no call waits for it."""

MAX_CLOCK_SKEW = 1.0
"""Seconds by which the clocks of two processes may differ, although none was set."""

CLEAR, LOOK, PAUSED = 0.0, -1.0, -2.0
"""Answers of ``Circuit.peek``: the call may pass at once, the gates have to be asked, or only the
pause that the provider asked for has to be looked at."""

_MAX_CONFLICTS = 100
"""Swaps lost in a row before the view alone decides: another process writes without end."""

Change = Callable[[Breaker, float], tuple[Breaker, Permit | CircuitRefusal | None]]


class _Tokens:
    """Names for probes, different in every process."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._numbers = itertools.count(1)

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._numbers):x}"


new_token = _Tokens()


def _stores_failures(store: ProviderStore) -> bool:
    """Whether ``compare_and_set`` of a store takes the failure that changed the circuit.

    A user's own store may be older than that parameter. A store that wraps another one may have
    no such method in its class.
    """
    method = getattr(type(store), "compare_and_set", None)
    return _takes_failed(store.compare_and_set) if method is None else _is_taken_by(method)


def _takes_failed(method: Callable[..., object]) -> bool:
    try:
        found = signature(method).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return False
    return any(each.name == "failed" or each.kind is Parameter.VAR_KEYWORD for each in found)


_is_taken_by = lru_cache(maxsize=64)(_takes_failed)


class Circuit:
    """The circuit and the cooldown of one lane, as this process sees them. Any thread may ask."""

    def __init__(
        self,
        store: ProviderStore,
        key: LaneKey,
        rule: BreakerRule,
        emit: Emit | None = None,
        *,
        fresh_for: float = FRESH_FOR,
        store_timeout: float = STORE_TIMEOUT,
        longest_probe: float | None = None,
        probe_renewer: ProbeRenewer = PROBE_RENEWER,
        may_wait: bool = True,
    ) -> None:
        """Probes are renewed for ``longest_probe`` seconds; None: they end with their lease. A
        store that never makes a caller wait (``may_wait``) is asked without a limit.
        """
        self._probe_renewer = probe_renewer
        self._longest_probe = longest_probe
        self._is_slow = False
        """Whether the store hung, rather than refused at once, when it last did not answer."""
        self._is_looking = False
        """Whether a background thread reads the store for this circuit."""
        self.key = key
        self.rule = rule
        self._store = store
        self.may_wait = may_wait
        """Whether a question to the store may take time."""
        self.now = store.now
        """The clock of the store."""
        self._emit = emit
        self._fresh_for = fresh_for
        self._store_timeout = store_timeout
        self._lock = threading.Lock()
        self._view = LaneState()
        self._stale_at = float("-inf")
        self._is_store_down = False
        self._is_ahead = False
        """Whether the circuit was changed here while the store was away."""
        self._owed_until = 0.0
        """The end of a cooldown that could not be written while the store was away."""
        self._pause = (0.0, 0.0)
        """The end of a cooldown by the store's clock, and by the monotonic clock here."""
        self._permit = Permit(0)
        self._name = new_token()
        self._tells_failures = _stores_failures(store)
        self._succeeded_at = NEVER
        """When a call last succeeded here, by the clock of the store. A closed circuit writes no
        success: the next change includes it, so that failures before it do not count.
        """

    def renew(self) -> None:
        """Called in a forked child: a lock that another thread held would never be free."""
        self._lock = threading.Lock()
        self._name = new_token()
        self._is_looking = False

    # -- reading -------------------------------------------------------------------------------

    @property
    def breaker(self) -> Breaker:
        """The circuit as last seen."""
        return self._view.breaker

    @property
    def observed(self) -> Breaker:
        """The circuit as users see it. An open one whose time is over counts as half open."""
        breaker = self._view.breaker
        return (
            breaker
            if breaker.state is not CircuitState.OPEN
            else breaker.observed(self._store.now())
        )

    @property
    def is_fresh(self) -> bool:
        """Whether :meth:`refresh` would not read the store."""
        now = self._store.now()
        # The upper bound is for a clock that was set back: the view would stay fresh for that long.
        return now < self._stale_at <= now + self._fresh_for

    def peek(self, now: float) -> float:
        """What a call would meet now, without reading the store: for the fast path.

        ``CLEAR`` when the view is fresh and the circuit closed, without failures or a cooldown;
        ``PAUSED`` when only :meth:`cooldown` has to be asked; the seconds of refusal when it is
        open; ``LOOK`` when :meth:`refresh` and :meth:`admit` have to decide.
        """
        view = self._view
        breaker = view.breaker
        if not now < self._stale_at <= now + self._fresh_for:
            return LOOK
        if breaker.state is CircuitState.CLOSED:
            if view.cooldown_until > now:
                return PAUSED
            return LOOK if breaker.failures else CLEAR
        until = breaker.open_until
        longest = breaker.held_for or self.rule.open_cooldown
        if until is None or not now < until <= now + longest:
            return LOOK
        return until - now

    def refresh(self) -> None:
        """Read the store if the view is old. If the store does not answer, the view stays."""
        if self.is_fresh:
            return
        if self._is_store_down and self._is_slow:
            # Each call would wait for the whole timeout. One thread tries instead, and calls go on
            # with the view that there is.
            self._refresh_in_background()
            return
        self._refresh()

    def _refresh_in_background(self) -> None:
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
            # Fresh for a moment, so that no other call starts a second look meanwhile.
            self._stale_at = self._store.now() + self._fresh_for
        try:
            REFRESH_THREADS.do(self._background_refresh)
        except RuntimeError:  # the interpreter ends
            self._is_looking = False

    def _background_refresh(self) -> None:
        try:
            self._refresh()
        finally:
            self._is_looking = False

    def _ask(self, work: Callable[..., T], *args: Any) -> T:
        """Ask the store, and wait for a limited time: a change can be written later."""
        if not self.may_wait:
            return work(*args)
        began_at = monotonic()
        try:
            answer = PROVIDER_BUDGET.run_within(self._store_timeout, partial(work, *args))
        except StoreError:
            # A store that refuses at once costs the call nothing and is asked again; one that hangs
            # is left to a thread.
            self._is_slow = monotonic() - began_at >= self._store_timeout / 2
            raise
        self._is_slow = False
        return answer

    def _refresh(self) -> None:
        # Compared below: what is read here may be older than a change of another thread.
        mine = self._view
        try:
            found = self._ask(self._store.lane_state, self.key)
        except StoreError:
            self._mark_store_down()
            return
        if found.cooldown_until:
            found = self._without_false_pause(found)
        with self._lock:
            self._is_store_down = False
            stale_at = self._store.now() + self._fresh_for
            if self._view is not mine:
                self._stale_at = stale_at
                return  # another thread has changed the view, and knows more than was just read
            owed_until, self._owed_until = self._owed_until, 0.0
            self._is_ahead &= mine.version == found.version and _opened_beside(mine, found)
            # A circuit that opened here while the store was away stays open until it is written,
            # unless another process has changed it meanwhile.
            if self._is_ahead:
                breaker = self._as_mine(mine.breaker, found.breaker)
                found = replace(found, breaker=breaker)
            self._view, is_ahead = found, self._is_ahead
            # After the view: other threads read both without the lock, and would take the old view
            # for a fresh one. A closed view lets all of them in.
            self._stale_at = stale_at
        # After the lock is free: this writes to the store.
        if owed_until > max(found.cooldown_until, self._store.now()):
            self.extend_cooldown(owed_until - self._store.now())
        if is_ahead:
            self._write_unwritten(found)
        elif found.breaker.state is not CircuitState.CLOSED:
            self._change(lambda breaker, now: (breaker.shortened(self.rule, now), None))
        elif found.breaker.failures:
            by = self._reporter()
            # A success of ours that was never written takes back failures which others have
            # counted.
            if found.breaker.with_report_of(by) is not found.breaker:
                self._change(lambda breaker, _: (breaker.with_report_of(by), None))

    def _without_false_pause(self, found: LaneState) -> LaneState:
        """The state with a pause that is as long as was asked, for all processes.

        A clock that was set back would lengthen it. That is seen by a process that knows the pause,
        and by any other if the lane was last written at an instant that is yet to come.
        """
        stated, now = found.cooldown_until, self._store.now()
        if stated <= now or not isinstance(self._store, ShortensCooldowns):
            return found
        ends = [stated]
        if found.written_at > now + MAX_CLOCK_SKEW:
            ends.append(now + max(0.0, stated - found.written_at))
        known, ends_at = self._pause
        ticks = current_clock().now()
        if known == stated:
            ends.append(now + max(0.0, ends_at - ticks))
        until = min(ends)
        if until >= stated - MAX_CLOCK_SKEW:
            return found
        store = self._store
        try:
            if not self._ask(store.shorten_cooldown, self.key, stated, until):
                return found
        except StoreError:
            return found  # what this process knows holds here all the same
        with self._lock:
            self._pause = (until, ticks + until - now)
        return replace(found, cooldown_until=until)

    def end_pause(self) -> float | None:
        """End the cooldown for an operator; returns when it would have ended, or None. Raises
        ``StoreError`` if the store does not answer.
        """
        store = self._store
        stated, now = store.lane_state(self.key).cooldown_until, store.now()
        if stated <= now or not isinstance(store, ShortensCooldowns):
            return None
        return stated if store.shorten_cooldown(self.key, stated, now) else None

    def _reporter(self) -> Reporter:
        return Reporter(self._name, self._succeeded_at)

    def _write_unwritten(self, view: LaneState) -> None:
        """Write a change that was made while the store was away; it was emitted at the time."""
        try:
            is_swapped = self._ask(
                self._store.compare_and_set, self.key, view.version, view.breaker
            )
        except StoreError:
            self._mark_store_down()
            return
        if is_swapped:
            self._keep(view, view.breaker, view.version + 1, is_ahead=False)
        else:
            # Another process has changed it meanwhile; what it knows goes before what was kept
            # here.
            self._reread(view)

    def _as_mine(self, mine: Breaker, theirs: Breaker) -> Breaker:
        # A new generation: reports under permits of the old one must not count.
        restored = mine.restored(self.rule, self._store.now())
        return replace(restored, generation=theirs.generation + 1)

    def refused_for(self) -> float | None:
        """Seconds for which a call would be refused now; None when it would be let in."""
        breaker = self._view.breaker
        if breaker.state is CircuitState.CLOSED:
            return None
        now = self._store.now()
        refusal = breaker.peek(self.rule, now)
        return None if refusal is None else max(0.0, refusal.retry_at - now)

    def cooldown(self, longest: float = math.inf) -> float:
        """Seconds for which no call should be made, because the provider asked for a pause.

        It never takes longer than it was to take when it was first seen, or than ``longest``: a
        clock that was set back would lengthen it.
        """
        stated = self._view.cooldown_until
        if not stated or (left := stated - self._store.now()) <= 0:
            return 0.0
        now = current_clock().now()
        known, until = self._pause
        if known != stated:
            until = now + min(left, longest)
            self._pause = (stated, until)
        return max(0.0, min(left, until - now))

    # -- passing -------------------------------------------------------------------------------

    def admit_cached(self) -> Permit | None:
        """A permit if the circuit is closed, which takes no write; otherwise None."""
        breaker = self._view.breaker
        if breaker.state is not CircuitState.CLOSED:
            return None
        if self._permit.generation != breaker.generation:
            self._permit = Permit(breaker.generation)
        return self._permit

    def admit(self) -> Permit | float:
        """A permit, or the seconds for which the call is refused."""
        quick = self.admit_cached()
        if quick is not None:
            return quick
        token = new_token()
        answer = self._change(lambda breaker, now: breaker.admit(self.rule, token, now))
        if isinstance(answer, CircuitRefusal):
            return max(0.0, answer.retry_at - self._store.now())
        # No answer after a hundred lost swaps: refused for no time at all, so that the caller tries
        # again.
        return answer if answer is not None else 0.0

    def keep(self, permit: Permit) -> None:
        """Renew the lease of a probe while its call is under way.

        To be called by the code that will report the end of the call. :meth:`admit` does not do it:
        a caller that is interrupted on its way out of ``admit`` cannot report, and its place has to
        be free again when the lease is over.
        """
        if permit.token and self._longest_probe is not None:
            self._probe_renewer.keep(self, permit, self.rule.probe_lease, self._longest_probe)

    def renew_probe(self, permit: Permit) -> bool:
        """Extend the lease of a probe; returns whether it still has its place."""
        self._change(lambda breaker, now: (breaker.renewed(self.rule, permit, now), None))
        return any(probe.token == permit.token for probe in self._view.breaker.probes)

    def needs_report(self, permit: Permit, vote: Vote) -> bool:
        """Whether reporting would change anything, and so has to be written."""
        if vote is Vote.SUCCESS and self._view.breaker.state is CircuitState.CLOSED:
            return not self.note_success(self._store.now())
        return bool(permit.token) or vote is Vote.FAILURE

    def note_success(self, now: float) -> bool:
        """Note a success that takes no write: the circuit is closed, and there are no failures."""
        breaker = self._view.breaker
        if breaker.failures or breaker.state is not CircuitState.CLOSED:
            return False
        self._succeeded_at = now
        return True

    def report(self, permit: Permit, vote: Vote, failed: LaneFailure | None = None) -> None:
        """Report the end of a call that was admitted; ``failed`` is what health shows of a
        failure.
        """
        # First: a probe that has ended must not be renewed once more behind its report.
        if permit.token:
            self._probe_renewer.forget(permit.token)
        if self.needs_report(permit, vote):
            by = self._reporter()
            self._change(
                lambda breaker, now: (breaker.report(self.rule, permit, vote, now, by), None),
                failed=failed if vote is Vote.FAILURE else None,
            )

    def force(self, state: CircuitState, seconds: float = 0.0) -> None:
        """Open or close the circuit for an operator; an open one stays so for ``seconds``."""
        self._change(lambda breaker, now: (breaker.forced(self.rule, state, now, seconds), None))

    def extend_cooldown(self, seconds: float) -> None:
        """Let no call pass for ``seconds``. A cooldown that ends later stays."""
        asked = until = self._store.now() + seconds
        if self._is_down():
            self._owed_until = max(self._owed_until, asked)
        else:
            try:
                until = self._ask(self._store.extend_cooldown, self.key, asked)
            except StoreError:
                self._mark_store_down()
                self._owed_until = max(self._owed_until, asked)
        ends_at = current_clock().now() + seconds
        with self._lock:
            known, known_end = self._pause
            if until == known:  # a longer cooldown, whose end by the monotonic clock is known
                self._pause = (until, max(ends_at, known_end))
            elif until <= asked + 0.001:  # ours; a store may round instants to milliseconds
                self._pause = (until, ends_at)
            view = self._view
            if until > view.cooldown_until:
                self._view = LaneState(view.breaker, until, view.version)
        if self._emit is not None:
            self._emit("cooldown.began", key=self.key, seconds=seconds)

    # -- swapping ------------------------------------------------------------------------------

    def _change(
        self, change: Change, failed: LaneFailure | None = None
    ) -> Permit | CircuitRefusal | None:
        """Change the circuit here and in the store; returns what the change returned."""
        try:
            return self._swap(change, failed)
        except ConflictError:
            pass
        swap = partial(self._swap, change, failed)
        try:
            return retry_conflicts(swap, max_attempts=_MAX_CONFLICTS - 1)
        except ConflictError:
            return swap(is_last=True)

    def _write(self, version: int, after: Breaker, failed: LaneFailure | None) -> bool:
        if failed is not None and self._tells_failures:
            return self._store.compare_and_set(self.key, version, after, failed=failed)
        return self._store.compare_and_set(self.key, version, after)

    def _swap(
        self, change: Change, failed: LaneFailure | None, *, is_last: bool = False
    ) -> Permit | CircuitRefusal | None:
        """Apply the change to the view and write it; ``ConflictError`` when others were faster.

        The last attempt is not repeated: the process then goes by its own view.
        """
        view = self._view
        after, answer = change(view.breaker, self._store.now())
        if after is view.breaker:
            return answer
        is_swapped = self._is_written(view, after, failed)
        if is_swapped is None:  # the store is away: the change is kept here, and written later
            if self._keep_unwritten(view, after) or is_last:
                return answer
            raise ConflictError  # another thread has changed the view
        if not is_swapped:
            if not is_last:
                self._reread(view)
                raise ConflictError
            if isinstance(answer, Permit):
                return None  # a probe that the store does not know of would be one too many
        self._keep(view, after, view.version + is_swapped, is_ahead=False)
        if after.generation != view.breaker.generation:
            self._emit_change(after)
        return answer

    def _is_written(
        self, view: LaneState, after: Breaker, failed: LaneFailure | None
    ) -> bool | None:
        """Whether the store accepted the change; None if it did not answer."""
        if self._is_store_down and self.is_fresh:
            return None
        try:
            return self._ask(self._write, view.version, after, failed)
        except StoreError:
            self._mark_store_down()
            return None

    def _keep_unwritten(self, view: LaneState, after: Breaker) -> bool:
        """Keep a change that could not be written, and emit it; False when the view has changed."""
        is_kept = self._keep(view, after, view.version, is_ahead=True)
        if is_kept and after.generation != view.breaker.generation:
            self._emit_change(after)
        return is_kept

    def _keep(self, before: LaneState, after: Breaker, version: int, *, is_ahead: bool) -> bool:
        with self._lock:
            view = self._view
            # Another thread was faster: its state has counted more than this one.
            if view.version != before.version or view.breaker is not before.breaker:
                return False
            self._view = LaneState(after, view.cooldown_until, version)
            self._is_ahead = is_ahead
            return True

    def _reread(self, before: LaneState) -> None:
        try:
            found = self._ask(self._store.lane_state, self.key)
        except StoreError:
            self._mark_store_down()
            return
        with self._lock:
            if self._view is before:
                self._view = found
                self._is_ahead = False  # another process has written meanwhile: its state holds

    def _is_down(self) -> bool:
        """Whether the store did not answer a moment ago, so that it is not asked again so soon."""
        return self._is_store_down and self.is_fresh

    def _mark_store_down(self) -> None:
        with self._lock:
            self._is_store_down = True
            self._stale_at = self._store.now() + self._fresh_for

    def _emit_change(self, after: Breaker) -> None:
        if self._emit is not None:
            self._emit(_NOTICES[after.state], key=self.key, failures=after.failures)


def _opened_beside(mine: LaneState, found: LaneState) -> bool:
    """Whether a circuit has opened here, which the other processes do not know."""
    return mine.breaker.state is CircuitState.OPEN and found.breaker.state is CircuitState.CLOSED


_NOTICES = {
    CircuitState.OPEN: "circuit.opened",
    CircuitState.HALF_OPEN: "circuit.half_opened",
    CircuitState.CLOSED: "circuit.closed",
}
