"""Flows as programs write them: chains and groups of steps, stored in one commit.

::

    flow = client.chain(
        ("fetch", [url]), client.group([("thumb", [80]), ("thumb", [160])]), "publish"
    )
    print(flow.enqueue().result(timeout=60))

A step is a job. In a chain its first positional argument is what the step before it returned; after
a group that is the list of what the members returned, in their order. Results travel by reference:
the successor stores which of its arguments come from which steps, and a worker reads them when it
sends the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from ergon_framework.core.flow import OnFailure
from ergon_framework.errors import FlowPartError, JobError
from ergon_framework.jobs.flow_client import AsyncEnqueuedFlow, EnqueuedFlow, EnqueuedId
from ergon_framework.jobs.flow_mistakes import no_list, no_part, refuse_spent
from ergon_framework.jobs.newjob import JobSpec, new_id, spread
from ergon_framework.ports.flow import (
    SIGNAL_PREFIX,
    Join,
    NewFlow,
    StepPlace,
    as_runs,
    join_id,
    step_id,
)
from ergon_framework.ports.job_fields import LISTS, check_call, choice, name, seconds
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.ports.usage import shows

T = TypeVar("T")

MAX_SHOWN = 100
"""How many parts of one group the plan of a flow names; the others are counted."""
_encode = msgspec.json.Encoder().encode
_NOT_OF_STEPS = ("id", "unique", "on_duplicate", "after", "on_failure")
_on_failure = choice(OnFailure)
_timeout = seconds(0.0, 10 * 366 * 86_400.0, is_above=True)
CheckCall: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], object]


class Step(Generic[T]):
    """One job of a flow: what it calls, and whether it gets the result of the step before it."""

    # No dataclass: the encoder would write one into the arguments of a job.
    __slots__ = ("args", "check", "handler", "kwargs", "options", "pass_result")
    not_json = (
        "a step of a flow, which runs by itself; pass step.result to another step of its flow"
    )

    def __init__(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        pass_result: bool = True,
        check: CheckCall | None = None,
    ) -> None:
        """``check`` raises for arguments that the handler could not take."""
        self.handler = handler
        self.args = args
        self.kwargs: Mapping[str, Any] = {} if kwargs is None else kwargs
        self.options: Mapping[str, Any] = {} if options is None else options
        self.pass_result = pass_result
        self.check = check

    def __repr__(self) -> str:
        return f"<step of {self.handler!r}>"

    @property
    def result(self) -> Any:
        """The step's result as an argument of another step, which then waits for this one."""
        return ResultOf(self)

    def without_result(self) -> Step[T]:
        """The same step, but without the result of the step before it."""
        options = self.handler, self.args, self.kwargs, self.options
        return Step(*options, pass_result=False, check=self.check)


class SignalStep:
    """A step that runs no handler. A signal completes it, and the signal's value is its result."""

    __slots__ = ("signal", "timeout")
    not_json = Step.not_json

    def __init__(self, signal: str, timeout: float | None = None) -> None:
        self.signal = signal
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"<step that waits for the signal {self.signal!r}>"

    @property
    def result(self) -> Any:
        """The value of the signal, as an argument of another step."""
        return ResultOf(self)


class ResultOf:
    """A place in the arguments of a step that the result of another step will fill."""

    __slots__ = ("step",)
    not_json = "the result of a step: it stands alone as an argument of a step of the same flow"

    def __init__(self, step: Step[Any] | SignalStep) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<result of {self.step!r}>"


class FlowClient(Protocol):
    """A client that stores flows."""

    def enqueue_flow(self, draft: Draft, *, connection: Any = None) -> EnqueuedFlow:
        """Store a chain or group in one commit."""


class AsyncFlowClient(Protocol):
    """Like ``FlowClient``, for event loops."""

    async def enqueue_flow(self, draft: Draft, *, connection: Any = None) -> AsyncEnqueuedFlow:
        """Store a chain or group in one commit."""


class FlowClients:
    """The clients of one store that a chain or group is enqueued with; opened at the first use."""

    def __init__(
        self,
        client: Callable[[], FlowClient],
        async_client: Callable[[], AsyncFlowClient] | None = None,
    ) -> None:
        self.client = client
        self.async_client = async_client


class Draft:
    """What chains and groups have in common: both can be enqueued."""

    def __init__(self, clients: FlowClients, flow_name: str | None, on_failure: str | None) -> None:
        self.clients = clients
        self.name = "" if flow_name is None or flow_name == "" else name("name", flow_name)
        self.on_failure = None if on_failure is None else _on_failure("on_failure", on_failure)

    @shows("flow.enqueue()", "resize.options(delay=5).step(80) for the options of a step")
    def enqueue(self, *, connection: Any = None) -> EnqueuedFlow:
        """Store the flow and all its steps in one commit; returns its id, which answers questions.

        With ``connection`` it is stored in the caller's own transaction: see
        :meth:`JobClient.enqueue`.
        """
        return self.clients.client().enqueue_flow(self, connection=connection)

    async def aenqueue(self, *, connection: Any = None) -> AsyncEnqueuedFlow:
        """Store the flow from an event loop; see :meth:`enqueue`."""
        if self.clients.async_client is None:
            raise JobError(
                "this flow was made with a client that has no event loop",
                remedy="make it with an App, or with an AsyncJobClient",
            )
        return await self.clients.async_client().enqueue_flow(self, connection=connection)


class Chain(Draft):
    """Steps one after another. Each waits for the step before it and gets its result."""

    def __init__(
        self,
        clients: FlowClients,
        parts: Iterable[Any],
        flow_name: str = "",
        on_failure: str | None = None,
    ) -> None:
        super().__init__(clients, flow_name, on_failure)
        self.parts = _parts("chain", parts)
        if not self.parts:
            raise JobError(
                "a chain has no steps", remedy="give it at least one: chain(resize.step(80))"
            )


class Group(Draft):
    """Steps that run side by side, and a step that follows when all of them have ended."""

    def __init__(
        self,
        clients: FlowClients,
        parts: Iterable[Any],
        then: Any = None,
        flow_name: str = "",
        on_failure: str | None = None,
    ) -> None:
        super().__init__(clients, flow_name, on_failure)
        if isinstance(parts, _SINGLE) or not isinstance(parts, Iterable):
            raise no_list(parts)
        refuse_spent(parts)
        self.parts = _parts("group", parts)
        self.then = None if then is None else part_of(then, "group", 0)


FlowPart: TypeAlias = Step[Any] | SignalStep | Chain | Group
# As tuples: a flow may have very many parts, and a look at a union of types takes longer.
_PARTS = (Step, SignalStep, Chain, Group)
_STEPS = (Step, SignalStep)
_SPECS = frozenset({str, tuple, list, dict})
_SINGLE = (*_PARTS, str, bytes, Mapping)
"""Values that Python could iterate over but that mean one step, not a list of steps."""


def _parts(kind: str, given: Iterable[Any]) -> list[FlowPart]:
    made: list[FlowPart] = []
    for each in given:
        made.append(part_of(each, kind, len(made) + 1))
    return made


def part_of(given: Any, kind: str, number: int) -> FlowPart:
    """Turn a value into a step, chain or group: a handler's name, a tuple or a dict is a step.

    ``kind`` and ``number`` say where the value stands, for the error: 1 is the first of a chain, 0
    the ``then`` of a group.
    """
    if type(given) not in _SPECS:
        if isinstance(given, _PARTS):
            return given
        if isinstance(given, ResultOf):
            raise FlowPartError(
                f"part {number} of a {kind} is {given.not_json}",
                remedy="put the step itself into the flow, and its result into another step",
            )
        as_step: Any = getattr(given, "step", None)
        # A handler of an App, without a call.
        if callable(as_step) and not isinstance(given, Mapping):
            made = as_step()
            if isinstance(made, Step):
                return made
        if isinstance(given, EnqueuedId) or not isinstance(given, str | list | tuple | Mapping):
            raise no_part(given, kind, number)
    spec: JobSpec = given
    if isinstance(spec, LISTS) and not (spec and isinstance(spec[0], str)):
        raise no_part(given, kind, number)
    handler, args, kwargs, options = spread(spec, {})
    if not isinstance(handler, str):
        raise no_part(given, kind, number)
    check_call(args, kwargs)
    return Step(handler, args, kwargs or {}, options)


def signal_step(signal: str, timeout: float | None = None) -> SignalStep:
    """A step that waits for a signal, so many seconds at most from when it is reached."""
    limit = None if timeout is None else _timeout("timeout", timeout)
    return SignalStep(name("signal", signal), limit)


# ---- planning -----------------------------------------------------------------------------------

_NOTHING: Final = object()
MakeJob: TypeAlias = Callable[[str, Sequence[Any], Mapping[str, Any], Mapping[str, Any]], NewJob]


class _Wait:
    """The steps that something waits for. The join is made when a successor asks for it."""

    __slots__ = ("join", "members")

    def __init__(self, members: Sequence[int] = ()) -> None:
        self.members = members
        self.join: str | None = None


@dataclass(slots=True)
class _Planned:
    part: Step[Any] | SignalStep
    join: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    uses: list[tuple[int | str, Any]]


class FlowPlanner:
    """Turns a chain or group into jobs and joins, and numbers its steps in the order of writing."""

    def __init__(
        self,
        draft: Draft,
        flow_id: str | None = None,
        *,
        max_steps: int | None = None,
        keep: float = 0.0,
    ) -> None:
        """``keep``: for how many seconds a flow without any job is kept after its end."""
        self.id = flow_id or new_id()
        self._draft = draft
        self._max_steps = max_steps
        self._keep = keep
        self._steps: list[_Planned] = []
        self._feeds: list[list[str]] = []
        self._joins: list[Join] = []
        self._numbers: dict[int, int] = {}
        self._signals: dict[str, int] = {}  # by the signal's name: the step that waits for it

    def plan(self, make: MakeJob) -> tuple[NewFlow, list[NewJob]]:
        """The flow and its steps as jobs. ``make`` makes each job."""
        draft = self._draft
        if not isinstance(draft, Chain | Group):
            raise JobError("only a chain or a group can be enqueued as a flow")
        try:
            _, result, tree = self._place(draft, _Wait(), _NOTHING)
            plan = _encode({"tree": tree, "result": None if result is _NOTHING else result})
        except RecursionError:
            raise JobError(
                "chains and groups stand in each other too deeply",
                remedy="collect steps that follow each other in a list: chain(*steps)",
            ) from None
        self._end()
        policy = draft.on_failure or OnFailure.CANCEL
        flow = NewFlow(
            id=self.id,
            name=draft.name,
            on_failure=policy,
            joins=tuple(self._joins),
            plan=plan,
            # If it has jobs, workers say with each end how long the flow is kept.
            keep=self._keep if len(self._signals) == len(self._steps) else 0.0,
        )
        return flow, [self._job(n, make) for n in range(1, len(self._steps) + 1)]

    def _place(self, part: FlowPart, wait: _Wait, result: Any) -> tuple[_Wait, Any, Any]:
        """Number a part. Returns what its successors wait for, its result, and how it is shown."""
        if isinstance(part, _STEPS):
            return self._place_step(part, wait, result)
        if part is not self._draft and (part.on_failure is not None or part.name):
            raise JobError(
                "a chain or group inside another has a name or an on_failure of its own",
                remedy="give both to the outermost one: they are those of the whole flow",
            )
        if isinstance(part, Chain):
            trees = []
            for each in part.parts:
                wait, result, tree = self._place(each, wait, result)
                trees.append(tree)
            return wait, result, {"chain": trees}
        return self._place_group(part, wait, result)

    def _place_group(self, group: Group, wait: _Wait, result: Any) -> tuple[_Wait, Any, Any]:
        placed = [self._place(each, wait, result) for each in group.parts]
        members = [n for each, _, _ in placed for n in each.members]
        after = _Wait(members) if placed else wait
        results = as_runs(each for _, each, _ in placed)
        tree: dict[str, Any] = {"group": _shown([each for _, _, each in placed])}
        if group.then is None:
            return after, results, tree
        after, result, then = self._place(group.then, after, results)
        return after, result, tree | {"then": then}

    def _place_step(
        self, part: Step[Any] | SignalStep, wait: _Wait, result: Any
    ) -> tuple[_Wait, Any, Any]:
        if id(part) in self._numbers:
            raise JobError(
                "one step stands in a flow twice", remedy="make a step for each place it has"
            )
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        uses: list[tuple[int | str, Any]] = []
        if isinstance(part, Step):
            args, kwargs = list(part.args), dict(part.kwargs)
            if part.pass_result and result is not _NOTHING:
                args.insert(0, None)
                uses.append((0, result))
        used = self._used(args, kwargs, uses)
        if used:
            members = list(dict.fromkeys([*wait.members, *used]))
            wait = wait if len(members) == len(wait.members) else _Wait(members)
        if self._max_steps is not None and len(self._steps) >= self._max_steps:
            raise JobError(
                f"a flow has more than {self._max_steps:,} steps",
                remedy="make several flows of it, or let a step enqueue a flow of its own",
                details={"max_steps": self._max_steps},
            )
        self._steps.append(_Planned(part, self._join(wait), args, kwargs, uses))
        self._feeds.append([])
        number = self._numbers[id(part)] = len(self._steps)
        if isinstance(part, SignalStep):
            self._name_signal(part.signal, number)
        title = part.handler if isinstance(part, Step) else f"{SIGNAL_PREFIX}{part.signal}"
        return _Wait([number]), number, {"step": number, "handler": title}

    def _name_signal(self, signal: str, number: int) -> None:
        """Refuse a second step for a signal: one approval would approve both."""
        other = self._signals.setdefault(signal, number)
        if other != number:
            raise JobError(
                f"steps {other} and {number} of the flow both wait for the signal {signal!r}",
                remedy="give each step that waits a name of its own, such as"
                f" {f'{signal}-{number}'!r}; what follows can use its result more than once",
                details={"signal": signal, "steps": [other, number]},
            )

    def _used(
        self, args: list[Any], kwargs: dict[str, Any], uses: list[tuple[int | str, Any]]
    ) -> list[int]:
        """The steps whose results are used as arguments. Each is replaced by a place to be filled
        later.
        """
        found: list[int] = []
        places: list[tuple[int | str, Any]] = []
        # By type, because this is asked for each argument of each step.
        for n, value in enumerate(args):
            if type(value) is ResultOf:
                places.append((n, value))
        if kwargs:
            places += [each for each in kwargs.items() if isinstance(each[1], ResultOf)]
        for place, value in places:
            number = self._numbers.get(id(value.step))
            if number is None:
                raise JobError(
                    "a step uses the result of one that does not come before it in the flow",
                    remedy="put that step into the same flow, before the one that uses its result",
                )
            found.append(number)
            uses.append((place, number))
            if isinstance(place, int):
                args[place] = None
            else:
                kwargs[place] = None
        return found

    def _join(self, wait: _Wait) -> str | None:
        if wait.join is None and wait.members:
            wait.join = self._new_join(str(len(self._joins) + 1), wait.members)
        return wait.join

    def _new_join(self, title: str, members: Sequence[int]) -> str:
        made = join_id(self.id, title)
        for number in members:
            self._feeds[number - 1].append(made)
        text = _encode(as_runs(members))
        self._joins.append(Join(id=made, flow_id=self.id, remaining=len(members), members=text))
        return made

    def _end(self) -> None:
        """Let steps that no other step waits for count at the end of the flow, so that each counts
        somewhere.
        """
        last = [n for n, feeds in enumerate(self._feeds, 1) if not feeds]
        if last:
            self._new_join("end", last)

    def _job(self, number: int, make: MakeJob) -> NewJob:
        planned = self._steps[number - 1]
        part = planned.part
        wait = signal = None
        if isinstance(part, SignalStep):
            job = make(f"{SIGNAL_PREFIX}{part.signal}", (), {}, {})
            wait, signal = part.timeout, part.signal
        else:
            if not planned.uses and part.check is not None:
                part.check(planned.args, planned.kwargs)
            job = make(part.handler, planned.args, planned.kwargs, _step_options(part))
        place = StepPlace(
            flow_id=self.id,
            join_id=planned.join,
            feeds=tuple(self._feeds[number - 1]),
            wait=wait,
            signal=signal,
        )
        made = step_id(self.id, number)
        return msgspec.structs.replace(job, id=made, uses=planned.uses or None, step=place)


def _step_options(step: Step[Any]) -> Mapping[str, Any]:
    if not step.options:
        return step.options
    for field_name in _NOT_OF_STEPS:
        if step.options.get(field_name) is not None:
            raise JobError(
                f"{field_name} cannot be given for a step of a flow",
                remedy="a step gets its id and its place from its flow; leave it out",
                details={"field": field_name},
            )
    return step.options


def _shown(trees: list[Any]) -> list[Any]:
    """Show steps of one handler side by side as one entry, and no more entries than people read."""
    found: list[Any] = []
    for tree in trees:
        last = found[-1] if found else {}
        count = last.get("count", 1)
        is_next = "step" in tree and tree["step"] == last.get("step", 0) + count
        if is_next and tree["handler"] == last.get("handler"):
            last["count"] = count + 1
        else:
            found.append(tree)
    if len(found) > MAX_SHOWN:
        return [*found[:MAX_SHOWN], {"more": len(found) - MAX_SHOWN}]
    return found


def plan_after(
    job: NewJob, after: Sequence[str], flow_id: str | None, on_failure: OnFailure
) -> tuple[NewFlow, NewJob]:
    """Plan a job that waits for stored jobs; ``flow_id`` is the flow that these belong to."""
    made = flow_id or new_id()
    first = join_id(made, new_id())
    end = join_id(made, new_id() if flow_id else "end")
    members = _encode(list(after))
    joins = (
        Join(id=first, flow_id=made, remaining=len(after), members=members),
        Join(id=end, flow_id=made, remaining=1, members=_encode([job.id])),
    )
    tree = {"after": list(after), "then": {"id": job.id, "handler": job.handler}}
    flow = NewFlow(
        id=made,
        on_failure=on_failure,
        is_new=flow_id is None,
        joins=joins,
        plan=_encode({"tree": tree, "result": job.id}),
        after=tuple(after),
    )
    place = StepPlace(flow_id=made, join_id=first, feeds=(end,))
    return flow, msgspec.structs.replace(job, step=place)
