"""The short options of a consumer, and the policy that they stand for.

::

    consumer_policy("charge", {"attempts": 3, "timeout": 5, "concurrency": 8})

Each option is another name of one field of :class:`ConsumerPolicy`; what the field refuses, the
option refuses, and numbers written as text as well, which a policy takes from variables. Two
options mean more than one field. ``concurrency`` alone keeps that many workers
busy: the policy then fetches as many at once, and does not wait for the slowest of a batch.
``batch`` belongs to functions that take a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

from ergon_framework.core.option_values import (
    count_problem,
    number_problem,
    or_none,
    shown,
    switch_problem,
    word_problem,
)
from ergon_framework.errors import WiringError
from ergon_framework.lazy_exports import LateModule

if TYPE_CHECKING:
    from pydantic import ValidationError

    from ergon_framework.task.mixins import policies
else:
    policies = LateModule("ergon_framework.task.mixins.policies")

DEFAULT_LINGER = 0.1
"""Seconds that a batch which is not full waits for more units, unless ``linger`` says otherwise."""
MAX_BATCH = 10_000
MAX_LINGER = 1e6
MAX_WORKERS = 100_000


class ConsumerOptions(TypedDict, total=False):
    """The short options of a consumer; a :class:`ConsumerPolicy` has all settings."""

    attempts: int
    """How often one unit is tried, the first attempt included."""
    timeout: float | None
    """Seconds of one attempt."""
    backoff: float
    """Seconds before the second attempt."""
    backoff_multiplier: float
    backoff_cap: float
    jitter: float
    concurrency: int
    """How many units are worked on at once; of a batch consumer, how many batches."""
    prefetch: int
    """How many units one fetch asks for."""
    batch: int
    """How many units one call of a function that takes a list gets at most."""
    linger: float
    """Seconds that a batch which is not full waits for more units."""
    streaming: bool
    """Whether to wait when there is nothing; otherwise an empty source ends the call."""
    limit: int | None
    """How many units are worked on in all."""
    transaction_timeout: float | None
    """Seconds of one unit, with all its attempts and the waits between them."""
    loop_timeout: float | None
    """Seconds of the whole call."""
    stop_grace: float
    payload_copies: bool
    settlement: Literal["engine", "manual"]
    mode: Literal["batch", "continuous"]
    fetch_attempts: int
    fetch_timeout: float | None
    fetch_backoff: float
    extra: Mapping[str, Any]
    """Further keyword arguments of each fetch."""
    policy: policies.ConsumerPolicy | Mapping[str, Any] | str
    """A whole policy; the other options may add to it, and not contradict it. A text is the name of
    one in the settings of an App."""


FindPolicy: TypeAlias = "Callable[[str, str], policies.ConsumerPolicy]"
"""Gives the policy of a name, for the consumer that asks for it."""


class BatchRule(NamedTuple):
    """How units are gathered for one call of a function."""

    size: int
    linger: float
    calls: int
    """How many such calls run at once."""


_PROCESS, _FETCH = ("steps", "process", "retry"), ("steps", "fetch", "retry")
_PATHS: dict[str, tuple[str, ...]] = {
    "attempts": (*_PROCESS, "max_attempts"),
    "timeout": (*_PROCESS, "timeout"),
    "backoff": (*_PROCESS, "backoff"),
    "backoff_multiplier": (*_PROCESS, "backoff_multiplier"),
    "backoff_cap": (*_PROCESS, "backoff_cap"),
    "jitter": (*_PROCESS, "jitter"),
    "concurrency": ("loop", "concurrency", "value"),
    "prefetch": ("loop", "batch", "size"),
    "streaming": ("loop", "streaming"),
    "limit": ("loop", "limit"),
    "transaction_timeout": ("loop", "transaction_timeout"),
    "loop_timeout": ("loop", "timeout"),
    "stop_grace": ("loop", "stop_grace"),
    "payload_copies": ("loop", "payload_copies"),
    "settlement": ("loop", "settlement"),
    "mode": ("loop", "mode"),
    "fetch_attempts": (*_FETCH, "max_attempts"),
    "fetch_timeout": (*_FETCH, "timeout"),
    "fetch_backoff": (*_FETCH, "backoff"),
    "extra": ("steps", "fetch", "extra"),
}
_KNOWN = tuple(ConsumerOptions.__annotations__)


def _extra_problem(value: object) -> str:
    if not isinstance(value, Mapping):
        return f"must be a mapping, not {shown(value)}"
    return "must not hold 'batch_size', which prefetch says" if "batch_size" in value else ""


_above_zero = partial(number_problem, is_above=True)
_CHECKS: dict[str, tuple[Callable[[Any], str], str]] = {
    "attempts": (count_problem, "3"),
    "timeout": (or_none(_above_zero), "5.0"),
    "backoff": (number_problem, "0.5"),
    "backoff_multiplier": (partial(number_problem, least=1), "2.0"),
    "backoff_cap": (number_problem, "30.0"),
    "jitter": (partial(number_problem, most=1), "0.2"),
    "concurrency": (partial(count_problem, most=MAX_WORKERS), "8"),
    "prefetch": (count_problem, "50"),
    "batch": (or_none(partial(count_problem, most=MAX_BATCH)), "100"),
    "linger": (or_none(partial(number_problem, most=MAX_LINGER)), "0.1"),
    "streaming": (switch_problem, "True"),
    "limit": (or_none(partial(count_problem, least=0)), "1000"),
    "transaction_timeout": (or_none(_above_zero), "60.0"),
    "loop_timeout": (or_none(_above_zero), "3600.0"),
    "stop_grace": (number_problem, "30.0"),
    "payload_copies": (switch_problem, "True"),
    "settlement": (partial(word_problem, choices=("engine", "manual")), '"engine"'),
    "mode": (partial(word_problem, choices=("batch", "continuous")), '"continuous"'),
    "fetch_attempts": (count_problem, "5"),
    "fetch_timeout": (or_none(_above_zero), "10.0"),
    "fetch_backoff": (number_problem, "1.0"),
    "extra": (_extra_problem, '{"shard": 1}'),
}
"""What each option refuses, and how a right one looks. The fields of the policy refuse the same."""


def option_path(option: str) -> tuple[str, ...]:
    """The field of the policy that an option stands for, by the keys that lead to it."""
    return _PATHS[option]


def consumer_policy(
    owner: str, options: Mapping[str, Any], connector: str | None = None
) -> policies.ConsumerPolicy:
    """The policy that the options of a consumer stand for."""
    return read_options(owner, options, connector)[0]


def read_batch(
    owner: str, options: Mapping[str, Any], *, has_names: bool = False
) -> BatchRule | None:
    """How units are gathered into batches, if ``batch`` is given; all options are checked.

    ``has_names``: a policy may be named here, and is looked up and checked at its first use.

    Without pydantic, which is slow to import: a program that only declares consumers shall start
    quickly. Only a program that passes a whole policy pays for that import.
    """
    policy = options.get("policy")
    if policy is not None and not (has_names and isinstance(policy, str)):
        return read_options(owner, options)[1]
    _refuse_wrong(owner, options)
    batch = _batch_rule(owner, dict(options))
    if batch is not None:
        _check_linger(owner, batch, options.get("timeout"), options.get("transaction_timeout"))
    return batch


def read_options(
    owner: str,
    options: Mapping[str, Any],
    connector: str | None = None,
    find_policy: FindPolicy | None = None,
) -> tuple[policies.ConsumerPolicy, BatchRule | None]:
    """The policy that the options stand for, and how units are gathered if ``batch`` is given.

    ``find_policy`` gives the policy of a name.
    """
    _refuse_wrong(owner, options)
    given = dict(options)
    whole = _as_table(owner, given.pop("policy", None), find_policy)
    batch = _batch_rule(owner, given)
    if batch is not None:
        _put(owner, whole, ("loop", "concurrency", "value"), batch.size * batch.calls, "batch")
        # Otherwise a fetch would bring one unit, and each batch would wait out its linger.
        given.setdefault("prefetch", batch.size)
    for name, value in given.items():
        _put(owner, whole, _PATHS[name], value, name)
    if connector is not None:
        _put(owner, whole, ("steps", "fetch", "connector_name"), connector, "connector")
    _keep_workers_busy(whole)
    policy = _checked(owner, whole)
    if batch is not None:
        timeouts = policy.steps.process.retry.timeout, policy.loop.transaction_timeout
        _check_linger(owner, batch, *timeouts)
    return policy, batch


def _refuse_wrong(owner: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that there is not, and a value that its field would refuse."""
    for name, value in options.items():
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1) or _by_field(name)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(_KNOWN)}"
            raise WiringError(f"the consumer {owner!r} has no option {name!r}", remedy=hint)
        if name == "policy":
            continue
        find_problem, example = _CHECKS[name]
        problem = find_problem(value)
        if problem:
            raise WiringError(
                f"the option {name!r} of the consumer {owner!r} {problem}",
                remedy=f"write for example {name}={example}",
            )


def _by_field(name: str) -> list[str]:
    """The option that stands for a field of this name."""
    return [option for option, path in _PATHS.items() if name in path[-1:]]


def _as_table(owner: str, policy: Any, find_policy: FindPolicy | None) -> dict[str, Any]:
    if policy is None:
        return {}
    from ergon_framework.task.mixins.policies import ConsumerPolicy

    if isinstance(policy, str) and find_policy is not None:
        policy = find_policy(owner, policy)
    if isinstance(policy, ConsumerPolicy):
        return policy.model_dump(exclude_unset=True)
    if isinstance(policy, Mapping):
        return _checked(owner, policy).model_dump(exclude_unset=True)
    if isinstance(policy, str):
        raise WiringError(
            f"the consumer {owner!r} names the policy {policy!r}, and has no settings to find it"
            " in",
            remedy="declare it with @app.consumer of an App, or pass ConsumerPolicy(...)",
        )
    raise WiringError(
        f"the policy of the consumer {owner!r} is {type(policy).__name__}",
        remedy="pass ConsumerPolicy(...), a mapping with its fields, or the name of one in the"
        " settings",
    )


def _batch_rule(owner: str, given: dict[str, Any]) -> BatchRule | None:
    size, linger = given.pop("batch", None), given.pop("linger", None)
    if size is None:
        if linger is not None:
            raise WiringError(
                f"the consumer {owner!r} has a linger and no batch",
                remedy="say how many units one call gets: batch=100",
            )
        return None
    # Here it counts calls with a whole batch each; the policy counts units, and gets their product.
    calls = given.pop("concurrency", 1)
    if calls > MAX_BATCH:
        raise WiringError(
            f"the option 'concurrency' of the consumer {owner!r} is {calls} batches",
            remedy=f"with batch, it is at most {MAX_BATCH}",
        )
    linger = DEFAULT_LINGER if linger is None else linger
    return BatchRule(size, float(linger), calls)


def _check_linger(owner: str, batch: BatchRule, *timeouts: float | None) -> None:
    """A batch that waits for more longer than its units have would never be handed over."""
    shortest = min((each for each in timeouts if each is not None), default=None)
    if shortest is not None and batch.linger >= shortest:
        raise WiringError(
            f"the consumer {owner!r} waits {batch.linger:g} s for a batch to fill, and its units"
            f" have {shortest:g} s in all",
            remedy="make linger shorter, or the timeout longer",
        )


def _put(owner: str, table: dict[str, Any], path: tuple[str, ...], value: Any, option: str) -> None:
    for key in path[:-1]:
        table = table.setdefault(key, {})
    known = table.setdefault(path[-1], value)
    if known != value:
        raise WiringError(
            f"the option {option!r} of the consumer {owner!r} contradicts {'.'.join(path)} of its"
            " policy",
            remedy="say it in one of the two places",
        )


def _keep_workers_busy(whole: dict[str, Any]) -> None:
    """Let a fetch ask for enough to keep all workers busy, unless the batch size was set.

    A plain policy does not do that: a fetch asks for exactly ``batch.size``, whose default is one.
    """
    loop = whole.get("loop", {})
    workers = loop.get("concurrency", {}).get("value", 1)
    if not isinstance(workers, int) or workers <= 1:
        return
    loop.setdefault("mode", "continuous")
    loop.setdefault("batch", {}).setdefault("size", workers)


def _checked(owner: str, table: Mapping[str, Any]) -> policies.ConsumerPolicy:
    from pydantic import ValidationError

    from ergon_framework.task.mixins.policies import ConsumerPolicy

    try:
        return ConsumerPolicy.model_validate(table)
    except ValidationError as error:
        problems = "; ".join(_problems(error))
        raise WiringError(f"the consumer {owner!r} is set up wrongly: {problems}") from error


def _problems(error: ValidationError) -> Iterator[str]:
    from ergon_framework.ports.settings_model import explain

    options = {path: name for name, path in _PATHS.items()}
    for details in error.errors(include_url=False):
        option = options.get(tuple(str(each) for each in details["loc"]))
        text = explain(details)
        yield text if option is None else f"{option}: {text}"
