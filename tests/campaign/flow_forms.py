"""The flows of the campaign: how each form is written, and how each of its steps has to end.

A step returns a list: its label, and then what it was given. The result of the last step therefore
tells which results of which steps were handed over, and in which order. Labels begin with the
number of the flow. Programs that die by the hundred import this, so it is light.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient

SIGNAL = "approved"
NEVER_SENT = "late"
MEMBERS = 40
"""Members of the largest group."""
DECISIONS = ("skip", "retry", "cancel")
"""What the operator decides about held flows, by turns."""
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
EITHER = (COMPLETED, CANCELLED)
"""How a step may end that runs beside one that fails."""


class Ends(NamedTuple):
    """How a step has to end."""

    statuses: tuple[str, ...] = (COMPLETED,)
    result: Any = None
    after: tuple[str, ...] = ()
    """The labels of its predecessors."""


class Expected(NamedTuple):
    """How a flow has to end."""

    status: str
    steps: dict[str, Ends]
    decision: str = ""
    """What the operator does: sends the signal, or decides about the held flow."""


class Form(NamedTuple):
    """One way to write a flow."""

    add: Callable[[JobClient, int], object]
    """Adds the flow of that number; the call returns when it is stored."""
    expected: Callable[[int], Expected]


def label(number: int, name: str) -> str:
    """What a step of a flow is called."""
    return f"{number}.{name}"


def flow_name(number: int) -> str:
    """What a flow is called."""
    return f"flow-{number}"


def job_id(number: int, name: str) -> str:
    """The id of a job that was not added as a step."""
    return f"flow-{number}-{name}"


def _note(number: int, name: str, handler: str = "note") -> tuple[str, list[str]]:
    return handler, [label(number, name)]


def _done(number: int, name: str, *given: Any, after: tuple[str, ...] = ()) -> Ends:
    return Ends(result=[label(number, name), *given], after=after)


# ---- forms --------------------------------------------------------------------------------------


def _add_chain(client: JobClient, number: int) -> None:
    steps = [_note(number, "a"), _note(number, "b", "flaky"), _note(number, "c")]
    client.chain(*steps, name=flow_name(number)).enqueue()


def _chain(number: int) -> Expected:
    a = _done(number, "a")
    b = _done(number, "b", a.result, after=("a",))
    return Expected(COMPLETED, {"a": a, "b": b, "c": _done(number, "c", b.result, after=("b",))})


def _add_group(client: JobClient, number: int) -> None:
    members = [_note(number, f"m{n}") for n in range(MEMBERS)]
    client.group(members, then=_note(number, "then"), name=flow_name(number)).enqueue()


def _group(number: int) -> Expected:
    steps = {f"m{n}": _done(number, f"m{n}") for n in range(MEMBERS)}
    results = [each.result for each in steps.values()]
    return Expected(COMPLETED, steps | {"then": _done(number, "then", results, after=tuple(steps))})


def _add_nested(client: JobClient, number: int) -> None:
    inner = client.group([_note(number, "x"), _note(number, "y")], then=_note(number, "z"))
    outer = client.group([client.chain(_note(number, "a"), _note(number, "b")), inner])
    client.chain(outer, _note(number, "last"), name=flow_name(number)).enqueue()


def _nested(number: int) -> Expected:
    a, x, y = (_done(number, name) for name in "axy")
    b = _done(number, "b", a.result, after=("a",))
    z = _done(number, "z", [x.result, y.result], after=("x", "y"))
    last = _done(number, "last", [b.result, z.result], after=("b", "z"))
    return Expected(COMPLETED, {"a": a, "b": b, "x": x, "y": y, "z": z, "last": last})


def _add_after(client: JobClient, number: int) -> None:
    first = [
        client.enqueue("note", [label(number, name)], id=job_id(number, name)) for name in "pq"
    ]
    last = [label(number, "last")]
    client.enqueue("note", last, id=job_id(number, "last"), after=first)


def _after(number: int) -> Expected:
    p, q = _done(number, "p"), _done(number, "q")
    return Expected(COMPLETED, {"p": p, "q": q, "last": _done(number, "last", after=("p", "q"))})


def _add_cancelled(client: JobClient, number: int) -> None:
    members = [_note(number, "f", "fails"), _note(number, "m")]
    client.chain(
        client.group(members, then=_note(number, "then")),
        _note(number, "last"),
        name=flow_name(number),
    ).enqueue()


def _cancelled(number: int) -> Expected:
    steps = {"f": Ends((FAILED,)), "m": _done(number, "m")._replace(statuses=EITHER)}
    return Expected(FAILED, steps | {"then": Ends((CANCELLED,)), "last": Ends((CANCELLED,))})


def _add_continued(client: JobClient, number: int) -> None:
    members = [_note(number, "m"), _note(number, "f", "fails")]
    then, name = _note(number, "then"), flow_name(number)
    client.group(members, then=then, name=name, on_failure="continue").enqueue()


def _continued(number: int) -> Expected:
    m = _done(number, "m")
    then = _done(number, "then", [m.result, None], after=("m", "f"))
    return Expected(COMPLETED, {"m": m, "f": Ends((FAILED,)), "then": then})


def _add_held(client: JobClient, number: int) -> None:
    steps = [_note(number, "a"), _note(number, "f", "fails"), _note(number, "last")]
    client.chain(*steps, name=flow_name(number), on_failure="hold").enqueue()


def _held(number: int) -> Expected:
    decision = DECISIONS[number // len(FORMS) % len(DECISIONS)]
    a = _done(number, "a")
    if decision == "retry":
        f = _done(number, "f", a.result, after=("a",))
        last = _done(number, "last", f.result, after=("f",))
        return Expected(COMPLETED, {"a": a, "f": f, "last": last}, decision)
    f = Ends((FAILED,), after=("a",))
    if decision == "skip":
        last = _done(number, "last", None, after=("f",))
        return Expected(COMPLETED, {"a": a, "f": f, "last": last}, decision)
    return Expected(CANCELLED, {"a": a, "f": f, "last": Ends((CANCELLED,))}, decision)


def _add_signalled(client: JobClient, number: int) -> None:
    signal = client.wait_for_signal(SIGNAL)
    name = flow_name(number)
    client.chain(_note(number, "a"), signal, _note(number, "last"), name=name).enqueue()


def signal_value(number: int) -> str:
    """What the operator sends with the signal."""
    return label(number, "yes")


def _signalled(number: int) -> Expected:
    value = signal_value(number)
    signal = Ends(result=value, after=("a",))
    last = _done(number, "last", value, after=(SIGNAL,))
    return Expected(COMPLETED, {"a": _done(number, "a"), SIGNAL: signal, "last": last}, "signal")


def _add_unsignalled(client: JobClient, number: int) -> None:
    client.chain(
        client.wait_for_signal(NEVER_SENT, timeout=0.2),
        _note(number, "last"),
        name=flow_name(number),
        on_failure="continue",
    ).enqueue()


def _unsignalled(number: int) -> Expected:
    last = _done(number, "last", None, after=(NEVER_SENT,))
    return Expected(COMPLETED, {NEVER_SENT: Ends((FAILED,)), "last": last})


FORMS = (
    Form(_add_chain, _chain),
    Form(_add_group, _group),
    Form(_add_nested, _nested),
    Form(_add_after, _after),
    Form(_add_cancelled, _cancelled),
    Form(_add_continued, _continued),
    Form(_add_held, _held),
    Form(_add_signalled, _signalled),
    Form(_add_unsignalled, _unsignalled),
)
STEPS = sum(len(form.expected(0).steps) for form in FORMS)
"""Steps of one flow of each form."""


def form_of(number: int) -> Form:
    """The forms have their turns."""
    return FORMS[number % len(FORMS)]
