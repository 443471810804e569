"""What turns amount to: the cost of a call, beside others and beside what is good enough."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from comparison import Contestant, ContestantError, Record, Turn

By = Literal["processor", "wall", "rate"]
"""What is compared: processor time or time of a call, where less is better, or calls per second."""


@dataclass(frozen=True)
class CostTarget:
    """What is good enough; each is checked for itself, and all must hold."""

    us: float | None = None  # at most, of a call: processor time where that is compared
    extra_us: float | None = None  # at most, of ours beyond theirs
    p95_us: float | None = None
    p99_us: float | None = None
    rate: float | None = None  # at least, per second
    most: float | None = None  # the ratio, where less is better
    least: float | None = None  # the ratio, where more is better

    def checked(self, made: Record, by: By) -> Record:
        """The target in words, and whether the record meets it."""
        us = "cpu_us" if by == "processor" else "us"
        checks = (
            (self.us, us, "<= {:g} us", True),
            (self.extra_us, "extra_us", "<= {:g} us more", True),
            (self.p95_us, "p95_us", "p95 <= {:g} us", True),
            (self.p99_us, "p99_us", "p99 <= {:g} us", True),
            (self.rate, "per_second", ">= {:,.0f}/s", False),
            (self.most, "ratio", "<= {:g} x", True),
            (self.least, "ratio", ">= {:g} x", False),
        )
        wanted = [(bound, name, text, is_most) for bound, name, text, is_most in checks
                  if bound is not None and name in made]  # fmt: skip
        if not wanted:
            return {}  # nothing to compare with: whom it is about was skipped
        return {
            "target": ", ".join(text.format(bound) for bound, _, text, _ in wanted),
            "met": all(made[name] <= bound if is_most else made[name] >= bound
                       for bound, name, _, is_most in wanted),
        }  # fmt: skip


def contestant(name: str, make: Callable[[], Callable[[], Turn]]) -> Contestant:
    """A contestant that is made now, and left out with the reason when it cannot be."""
    try:
        return Contestant(name, make())
    except (ImportError, ContestantError, OSError) as error:
        return Contestant(name, _not_made, skipped=f"{type(error).__name__}: {error}"[:300])


def _not_made() -> Turn:
    raise ContestantError("it was not made")


def records(
    case: str,
    ours: Contestant,
    peers: Sequence[tuple[Contestant, CostTarget | None]],
    target: CostTarget | None = None,
    *,
    by: By = "processor",
) -> list[Record]:
    """One for us, and one for each peer with our figure divided by theirs."""
    return [
        record(case, ours, None, target, by=by),
        *(record(case, peer, ours, wanted, by=by) for peer, wanted in peers),
    ]


def record(
    case: str, theirs: Contestant, ours: Contestant | None, target: CostTarget | None, *, by: By
) -> Record:
    """Medians over the rounds; a ratio is of two turns in the same round."""
    made: Record = {"case": case, "who": theirs.name}
    if theirs.skipped is not None:
        return made | {"skipped": theirs.skipped}
    wall = [turn.seconds / turn.count * 1e6 for turn in theirs.turns]
    made |= {
        "us": _rounded(statistics.median(wall)),
        "us_spread": [_rounded(min(wall)), _rounded(max(wall))],
        "per_second": round(1e6 / statistics.median(wall), 1),
        "rounds": len(wall),
        "count": theirs.turns[0].count,
    }
    if all(turn.cpu_time for turn in theirs.turns):
        cpu_times = [_figure(turn, "processor") for turn in theirs.turns]
        made["cpu_us"] = _rounded(statistics.median(cpu_times))
        made["cpu_us_spread"] = [_rounded(min(cpu_times)), _rounded(max(cpu_times))]
    if theirs.turns[0].latencies:
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)):
            made[f"{name}_us"] = _rounded(_quantile(theirs.turns, part))
    if ours is not None and ours.skipped is None:
        made |= ratio_to(ours, theirs, by)
    return made | (target.checked(made, by) if target is not None else {})


def ratio_to(ours: Contestant, theirs: Contestant, by: By) -> Record:
    """Our figure divided by theirs, round by round."""
    pairs = [(_figure(our, by), _figure(their, by))
             for our, their in zip(ours.turns, theirs.turns, strict=True)]  # fmt: skip
    quotients = [our / their for our, their in pairs]
    made: Record = {
        "ratio": _rounded(statistics.median(quotients)),
        "ratio_spread": [_rounded(min(quotients)), _rounded(max(quotients))],
        "ratio_of": by,
    }
    if by != "rate":
        made["extra_us"] = _rounded(statistics.median(our - their for our, their in pairs))
    return made


def _figure(turn: Turn, by: By) -> float:
    if by == "rate":
        return turn.rate
    return (turn.cpu_time if by == "processor" else turn.seconds) / turn.count * 1e6


def _quantile(turns: Sequence[Turn], part: float) -> float:
    """The median over the rounds of one quantile of each."""
    found = [sorted(turn.latencies)[min(len(turn.latencies) - 1, int(len(turn.latencies) * part))]
             for turn in turns]  # fmt: skip
    return statistics.median(found) * 1e6


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")
