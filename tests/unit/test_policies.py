from __future__ import annotations

import copy
import json
import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ergon_framework import task
from ergon_framework.task.mixins import policies
from ergon_framework.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    EmptyQueuePolicy,
    ExceptionPolicy,
    FetchPolicy,
    ProcessPolicy,
    ProducePolicy,
    ProducerLoopPolicy,
    ProducerPolicy,
    ProducerSteps,
    RetryPolicy,
    SuccessPolicy,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "policies.md"
NAMES = [name for name in task.__all__ if name.endswith(("Policy", "Steps"))]
POLICIES: list[type[BaseModel]] = [getattr(policies, name) for name in NAMES]

# ---- any policy ---------------------------------------------------------------------------------

counts = st.integers(1, 10**6)
not_negative = st.floats(0.0, 1e12)
positive = st.floats(0.0, 1e12, exclude_min=True)
factors = st.floats(1.0, 1e6)
words = st.none() | st.text(max_size=6).filter(
    lambda text: text.strip().lower() not in ("", "none", "null")
)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
extras = st.dictionaries(st.text(max_size=6), json_values, max_size=3)
retries = st.builds(
    RetryPolicy,
    max_attempts=counts,
    timeout=st.none() | positive,
    backoff=not_negative,
    backoff_multiplier=factors,
    backoff_cap=not_negative,
    jitter=st.floats(0.0, 1.0),
)
batches = st.integers(1, 1000).flatmap(
    lambda size: st.builds(
        BatchPolicy,
        size=st.just(size),
        min_size=st.integers(1, size),
        max_size=st.none() | st.integers(size, 10**6),
        interval=not_negative,
    )
)
concurrencies = st.integers(1, 1000).flatmap(
    lambda value: st.builds(
        ConcurrencyPolicy,
        value=st.just(value),
        min=st.integers(1, value),
        max=st.none() | st.integers(value, 10**6),
        max_abandoned=st.none() | counts,
        abandoned=st.sampled_from(["release", "hold"]),
    )
)
shared: dict[str, st.SearchStrategy[Any]] = {
    "batch": batches,
    "concurrency": concurrencies,
    "timeout": st.none() | positive,
    "limit": st.none() | st.integers(0, 10**9),
    "transaction_timeout": st.none() | positive,
    "stop_grace": not_negative,
    "cancel_grace": not_negative,
    "payload_copies": st.booleans(),
}
steps = {
    "success": st.builds(SuccessPolicy, retry=retries),
    "exception": st.builds(ExceptionPolicy, retry=retries),
}
consumer_policies = st.builds(
    ConsumerPolicy,
    loop=st.builds(
        ConsumerLoopPolicy,
        **shared,
        streaming=st.booleans(),
        empty_queue=st.builds(
            EmptyQueuePolicy,
            backoff=not_negative,
            backoff_multiplier=factors,
            backoff_cap=not_negative,
            interval=not_negative,
        ),
        mode=st.sampled_from(["batch", "continuous"]),
        settlement=st.sampled_from(["engine", "manual"]),
        settlement_timeout=positive,
        settlement_attempts=counts,
        release_grace=not_negative,
        max_hold=st.none() | not_negative,
    ),
    steps=st.builds(
        ConsumerSteps,
        fetch=st.builds(FetchPolicy, retry=retries, extra=extras, connector_name=words),
        process=st.builds(ProcessPolicy, retry=retries),
        **steps,
    ),
    name=words,
)
producer_policies = st.builds(
    ProducerPolicy,
    loop=st.builds(ProducerLoopPolicy, **shared),
    steps=st.builds(ProducerSteps, produce=st.builds(ProducePolicy, retry=retries), **steps),
    name=words,
)
any_policy = consumer_policies | producer_policies


@pytest.mark.req("R3-D2", "R3-D1")
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(any_policy)
def test_every_policy_survives_every_form(policy: BaseModel) -> None:
    """Through a dict, JSON, pickle and a deep copy a policy comes back equal."""
    kind = type(policy)
    assert kind.model_validate(policy.model_dump()) == policy
    assert kind.model_validate_json(policy.model_dump_json()) == policy
    assert kind.model_validate(json.loads(json.dumps(policy.model_dump()))) == policy
    again = pickle.loads(pickle.dumps(policy))  # noqa: S301 - our own bytes
    assert again == policy == copy.deepcopy(policy)
    assert hash(again) == hash(policy)


@pytest.mark.req("R3-D4", "RFC-004:17a", "RFC-005:19a", "R0-BC")
def test_the_defaults_are_safe() -> None:
    """Left alone, a call tries each thing once, one at a time, and ends when there is no more."""
    loop = ConsumerPolicy().loop
    retry = ConsumerPolicy().steps.process.retry
    assert (retry.max_attempts, retry.timeout, retry.backoff, retry.jitter) == (1, None, 0.0, 0.0)
    assert (loop.concurrency.value, loop.batch.size, loop.streaming) == (1, 1, False)
    assert (loop.timeout, loop.limit, loop.transaction_timeout) == (None, None, None)
    assert (loop.mode, loop.settlement, loop.concurrency.abandoned) == (
        "batch",
        "engine",
        "release",
    )
    assert loop.empty_queue.backoff > 0.0  # an idle consumer does not spin


RETRY = {
    "max_attempts": 1,
    "timeout": None,
    "backoff": 0.0,
    "backoff_multiplier": 2.0,
    "backoff_cap": 0.0,
    "jitter": 0.0,
}
LOOP = {
    "batch": {"size": 1, "min_size": 1, "max_size": None, "interval": 0.0},
    "concurrency": {
        "value": 1,
        "min": 1,
        "max": None,
        "max_abandoned": None,
        "abandoned": "release",
    },
    "timeout": None,
    "limit": None,
    "transaction_timeout": None,
    "stop_grace": 30.0,
    "cancel_grace": 1.0,
    "payload_copies": False,
}
STEPS = {"success": {"retry": RETRY}, "exception": {"retry": RETRY}}


@pytest.mark.req("RFC-004:17a", "R0-BC")
def test_the_defaults_of_a_consumer_change_on_purpose_only() -> None:
    """A call without a policy does tomorrow what it does today; a new field has a default."""
    empty = {"backoff": 0.1, "backoff_multiplier": 2.0, "backoff_cap": 10.0, "interval": 0.0}
    loop = {
        **LOOP,
        "streaming": False,
        "empty_queue": empty,
        "mode": "batch",
        "settlement": "engine",
        "settlement_timeout": 30.0,
        "settlement_attempts": 5,
        "release_grace": 5.0,
        "max_hold": None,
    }
    fetch = {"retry": RETRY, "extra": {}, "connector_name": None}
    steps = {**STEPS, "fetch": fetch, "process": {"retry": RETRY}}
    assert ConsumerPolicy().model_dump() == {"loop": loop, "steps": steps, "name": None}


@pytest.mark.req("RFC-005:19a", "R0-BC")
def test_the_defaults_of_a_producer_change_on_purpose_only() -> None:
    """A call without a policy does tomorrow what it does today; a new field has a default."""
    steps = {**STEPS, "produce": {"retry": RETRY}}
    assert ProducerPolicy().model_dump() == {"loop": LOOP, "steps": steps, "name": None}


@pytest.mark.parametrize("policy", POLICIES)
def test_defaults_obey_their_own_rules(policy: type[BaseModel]) -> None:
    """What a policy says by default it also accepts."""
    assert policy.model_validate(policy().model_dump()) == policy()


@pytest.mark.req("RFC-004:5.1a", "RFC-005:5")
def test_both_paths_lead_to_the_same_classes() -> None:
    """The RFC's module and the package, which is easier to remember, name one set of classes."""
    for name in NAMES:
        assert getattr(task, name) is getattr(policies, name)


@pytest.mark.req("R3-ST1", "R3-D5")
def test_each_step_has_a_budget_of_its_own() -> None:
    """Setting one step's retry leaves the others at their defaults."""
    consumer = ConsumerPolicy(steps={"fetch": {"retry": {"max_attempts": 4}}})  # type: ignore[arg-type]
    assert [
        step.retry.max_attempts
        for step in (
            consumer.steps.fetch,
            consumer.steps.process,
            consumer.steps.success,
            consumer.steps.exception,
        )
    ] == [4, 1, 1, 1]


@pytest.mark.parametrize(
    "valid",
    [
        {
            "loop": {"batch": {"size": 100}, "concurrency": {"value": 10}, "streaming": True},
            "steps": {"process": {"retry": {"max_attempts": 3, "timeout": 5}}},
        },
        {"loop": {"streaming": True, "empty_queue": {"backoff": 1.0, "backoff_cap": 60.0}}},
    ],
)
def test_what_the_rfc_calls_valid_is_accepted(valid: dict[str, Any]) -> None:
    """The configurations RFC-003 gives as valid are."""
    policy = ConsumerPolicy.model_validate(valid)
    assert policy.loop.streaming


# ---- what cannot be changed ---------------------------------------------------------------------


@pytest.mark.req("RFC-004:15h", "RFC-005:17b", "R3-D1")
@pytest.mark.parametrize("policy", POLICIES)
def test_no_field_can_be_changed(policy: type[BaseModel]) -> None:
    """Setting or deleting a field is refused, whichever it is, and so is a new one."""
    document = policy()
    for name in [*policy.model_fields, "new"]:
        with pytest.raises(ValidationError):
            setattr(document, name, 5)
        with pytest.raises((ValidationError, AttributeError)):
            delattr(document, name)
    assert document == policy()


CHANGES: list[Any] = [
    lambda extra: extra.__setitem__("a", 1),
    lambda extra: extra.__delitem__("keys"),
    lambda extra: extra.update(a=1),
    lambda extra: extra.clear(),
    lambda extra: extra.pop("keys"),
    lambda extra: extra.popitem(),
    lambda extra: extra.setdefault("a", 1),
    lambda extra: extra.__ior__({"a": 1}),
    lambda extra: extra["keys"].append("c"),
    lambda extra: extra["keys"].sort(),
    lambda extra: extra["keys"].__setitem__(0, "z"),
    lambda extra: extra["keys"].__iadd__(["z"]),
    lambda extra: extra["deep"]["er"].update(a=1),
]


@pytest.mark.req("RFC-004:15h", "R3-D1")
@pytest.mark.parametrize("change", CHANGES)
def test_extra_is_frozen_to_its_depth(change: Any) -> None:
    """No way of changing a dict or list works on what a policy holds."""
    policy = FetchPolicy(extra={"keys": ["b", "a"], "deep": {"er": {}}})
    with pytest.raises(TypeError, match="cannot be changed"):
        change(policy.extra)
    assert policy.extra == {"keys": ["b", "a"], "deep": {"er": {}}}


@pytest.mark.req("R3-D1")
def test_extra_is_a_copy() -> None:
    """Changing what was given, or what was dumped, changes nothing in the policy."""
    mine: dict[str, Any] = {"keys": ["a"]}
    policy = FetchPolicy(extra=mine)
    mine["keys"].append("b")
    mine["more"] = 1
    policy.model_dump()["extra"]["keys"].append("c")
    assert policy.extra == {"keys": ["a"]}
    assert isinstance(policy.extra["keys"], list)  # connectors may look


def test_a_copy_with_changes_is_checked() -> None:
    """A copy is how a field is changed, and it cannot smuggle in what the class refuses."""
    policy = RetryPolicy(max_attempts=3)
    assert policy.model_copy(update={"backoff": "2"}) == RetryPolicy(max_attempts=3, backoff=2.0)
    assert policy.model_copy() == policy
    for update in ({"max_attempts": 0}, {"max_attemps": 5}):
        with pytest.raises(ValidationError, match="max_attem"):
            policy.model_copy(update=update)


# ---- what is refused ----------------------------------------------------------------------------


def refusal(policy: type[BaseModel], **values: Any) -> str:
    """What a policy says when it refuses these values."""
    with pytest.raises(ValidationError) as caught:
        policy(**values)
    return str(caught.value)


@pytest.mark.req("R3-K2", "T3.23", "T3.22")
@pytest.mark.parametrize(
    ("policy", "values", "told"),
    [
        (RetryPolicy, {"max_attempts": 0}, "max_attempts must be at least 1, not 0"),
        (RetryPolicy, {"max_attempts": "many"}, "max_attempts must be a whole number, not 'many'"),
        (RetryPolicy, {"max_attempts": 1.5}, "max_attempts must be a whole number, not 1.5"),
        (RetryPolicy, {"max_attempts": True}, "max_attempts must be a number, not True"),
        (RetryPolicy, {"max_attempts": None}, "max_attempts must be a whole number, not None"),
        (RetryPolicy, {"max_attempts": ""}, "max_attempts must be a whole number, not ''"),
        (RetryPolicy, {"timeout": 0}, "timeout must be greater than 0, not 0"),
        (RetryPolicy, {"timeout": -1.0}, "timeout must be greater than 0, not -1.0"),
        (RetryPolicy, {"timeout": math.nan}, "timeout must be a finite number, not nan"),
        (RetryPolicy, {"timeout": "inf"}, "timeout must be a finite number, not 'inf'"),
        (RetryPolicy, {"timeout": False}, "timeout must be a number, not False"),
        (RetryPolicy, {"backoff": -0.1}, "backoff must be at least 0, not -0.1"),
        (RetryPolicy, {"backoff": math.inf}, "backoff must be a finite number, not inf"),
        (RetryPolicy, {"backoff": 10**400}, "backoff is too large"),
        (RetryPolicy, {"backoff": 10**5000}, "backoff is too large"),
        (RetryPolicy, {"backoff": -(10**400)}, "backoff is too small"),
        (RetryPolicy, {"max_attempts": -(10**5000)}, "max_attempts must be at least 1"),
        (RetryPolicy, {"max_attempts": "1" * 5000}, "max_attempts is too large"),
        (RetryPolicy, {"backoff": []}, "backoff must be a number"),
        (
            RetryPolicy,
            {"backoff_multiplier": 0.5},
            "backoff_multiplier must be at least 1, not 0.5",
        ),
        (RetryPolicy, {"backoff_cap": -1}, "backoff_cap must be at least 0, not -1"),
        (RetryPolicy, {"jitter": 1.1}, "jitter must be at most 1, not 1.1"),
        (EmptyQueuePolicy, {"backoff_multiplier": 0.9}, "backoff_multiplier must be at least 1"),
        (EmptyQueuePolicy, {"interval": math.nan}, "interval must be a finite number"),
        (ConcurrencyPolicy, {"value": -1}, "value must be at least 1, not -1"),
        (ConcurrencyPolicy, {"abandoned": "x"}, "abandoned must be 'release' or 'hold', not 'x'"),
        (ConcurrencyPolicy, {"max_abandoned": 0}, "max_abandoned must be at least 1, not 0"),
        (BatchPolicy, {"size": 0}, "size must be at least 1, not 0"),
        (ConsumerLoopPolicy, {"limit": -1}, "limit must be at least 0, not -1"),
        (ConsumerLoopPolicy, {"timeout": 0.0}, "timeout must be greater than 0, not 0.0"),
        (ConsumerLoopPolicy, {"transaction_timeout": 0}, "transaction_timeout must be greater"),
        (
            ConsumerLoopPolicy,
            {"streaming": "maybe"},
            "streaming must be true or false, not 'maybe'",
        ),
        (ConsumerLoopPolicy, {"streaming": None}, "streaming must be true or false, not None"),
        (ConsumerLoopPolicy, {"mode": "x"}, "mode must be 'batch' or 'continuous', not 'x'"),
        (ConsumerLoopPolicy, {"settlement": 1}, "settlement must be 'engine' or 'manual', not 1"),
        (
            ConsumerLoopPolicy,
            {"settlement_timeout": 0},
            "settlement_timeout must be greater than 0",
        ),
        (ProducerLoopPolicy, {"stop_grace": -1}, "stop_grace must be at least 0, not -1"),
        (ConsumerPolicy, {"name": 5}, "name must be text, not 5"),
        (ConsumerPolicy, {"loop": "fast"}, "must be a table"),
        (
            ConsumerPolicy,
            {"steps": ProducerSteps()},
            "steps\n  must be ConsumerSteps, not ProducerSteps",
        ),
        (FetchPolicy, {"extra": [1]}, "extra must be a table"),
        (FetchPolicy, {"extra": {"batch_size": 1}}, "extra must not hold 'batch_size'"),
        (FetchPolicy, {"extra": {"at": object()}}, "extra must hold JSON values only, and object"),
        (FetchPolicy, {"extra": {"call": print}}, "extra must hold JSON values only"),
        (FetchPolicy, {"extra": {5: 1}}, "extra must have text as keys"),
        (FetchPolicy, {"extra": {"x": [math.nan]}}, "extra must hold finite numbers only"),
        (FetchPolicy, {"extra": {"x": "\ud800"}}, "extra must hold text that UTF-8 can carry"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(
    policy: type[BaseModel], values: dict[str, Any], told: str
) -> None:
    """The refusal names the field, what may stand there, and what did."""
    assert told in refusal(policy, **values)


def test_an_endless_extra_is_refused() -> None:
    """A dict that holds itself ends in an error, not in the depth of the stack."""
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert "nested deeper" in refusal(FetchPolicy, extra=endless)


@pytest.mark.parametrize(
    ("policy", "values", "told"),
    [
        (
            RetryPolicy,
            {"max_attemps": 3},
            "unknown key 'max_attemps' in RetryPolicy; did you mean 'max_attempts'?",
        ),
        (RetryPolicy, {"MAX_ATTEMPTS": 3}, "did you mean 'max_attempts'?"),
        (RetryPolicy, {"colour": 3}, "known keys are max_attempts, timeout, backoff"),
        (ConsumerPolicy, {"limit": 3}, "did you mean 'loop.limit'?"),
        (ConsumerPolicy, {"fetch": {}}, "did you mean 'steps.fetch'?"),
        (ConsumerLoopPolicy, {"size": 3}, "did you mean 'batch.size'?"),
        (ProducerPolicy, {"produce": {}}, "did you mean 'steps.produce'?"),
        (ProducerLoopPolicy, {"streaming": True}, "unknown key 'streaming' in ProducerLoopPolicy"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    policy: type[BaseModel], values: dict[str, Any], told: str
) -> None:
    """A key that does not exist is never ignored; the one that was meant is named."""
    assert told in refusal(policy, **values)


@pytest.mark.req("R3-K2")
def test_all_mistakes_are_told_at_once_with_their_place() -> None:
    """One refusal lists every mistake of the whole document with its path."""
    with pytest.raises(ValidationError) as caught:
        ConsumerPolicy.model_validate(
            {
                "loop": {"limit": -1, "batch": {"sise": 5}},
                "steps": {"process": {"retry": {"timeout": 0, "max_attempts": 0}}},
                "stepps": {},
            }
        )
    assert {".".join(map(str, error["loc"])) for error in caught.value.errors()} == {
        "loop.limit",
        "loop.batch.sise",
        "steps.process.retry.timeout",
        "steps.process.retry.max_attempts",
        "stepps",
    }
    assert isinstance(caught.value, ValueError)


def test_a_refusal_shows_no_content_of_tables() -> None:
    """Arguments of a fetch may be confidential, and text in a table's place may be a URL."""
    assert "hunter2" not in refusal(FetchPolicy, extra={"password": "hunter2", "x": object()})
    assert "hunter2" not in refusal(ConsumerPolicy, loop="amqp://me:hunter2@host")


# ---- bounds on values ---------------------------------------------------------------------------


@pytest.mark.req("T3.24")
@pytest.mark.parametrize(
    ("policy", "value", "low", "high"),
    [(ConcurrencyPolicy, "value", "min", "max"), (BatchPolicy, "size", "min_size", "max_size")],
)
def test_bounds_hold_only_when_given(
    policy: type[BaseModel], value: str, low: str, high: str
) -> None:
    """Any value is accepted without bounds; with them it lies between, ends included."""
    assert dict(policy(**{value: 10**6}))[high] is None
    assert dict(policy(**{value: 5, low: 5, high: 5}))[value] == 5
    assert f"{low} must be at most {value}, which is 5" in refusal(policy, **{value: 5, low: 6})
    assert f"{high} must be at least {value}, which is 5" in refusal(policy, **{value: 5, high: 4})
    assert f"{low} must be at most {value}, which is 1" in refusal(policy, **{low: 2})


def test_a_bound_on_a_refused_value_says_nothing_of_its_own() -> None:
    """Only the wrong value is reported, not what follows from it."""
    told = refusal(ConcurrencyPolicy, value=0, min=3, max=2)
    assert "1 validation error" in told


# ---- what an environment variable can hold ------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "none", "None", "NULL", " null "])
def test_words_for_nothing(text: str) -> None:
    """Where a value may be absent, text can say so."""
    loop = ConsumerLoopPolicy.model_validate(
        {"timeout": text, "limit": text, "concurrency": {"max": text, "max_abandoned": text}}
    )
    assert loop == ConsumerLoopPolicy()
    assert ConsumerPolicy.model_validate({"name": text}).name is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, True) for word in ("1", "true", "yes", "on", "True", " ON ")),
        *((word, False) for word in ("0", "false", "no", "off", "False", " Off ")),
    ],
)
def test_words_for_switches(text: str, *, value: bool) -> None:
    """Switches understand the usual words in any case."""
    assert ConsumerLoopPolicy.model_validate({"streaming": text}).streaming is value


def test_numbers_as_text() -> None:
    """Numbers may be text, with blanks around them."""
    retry = RetryPolicy.model_validate({"max_attempts": " 5 ", "timeout": "2.5", "backoff": "1e1"})
    assert retry == RetryPolicy(max_attempts=5, timeout=2.5, backoff=10.0)


# ---- the page -----------------------------------------------------------------------------------


def tables(page: str) -> dict[str, list[tuple[str, str]]]:
    """The first two columns of each section's table, by the names in its heading."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
        for name in section.splitlines()[0].split(", "):
            found[name] = rows
    return found


def shown(value: object) -> str:
    """A default as the page writes it."""
    return type(value).__name__ if isinstance(value, BaseModel) else str(value)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_page_has_every_field_and_its_default(policy: type[BaseModel]) -> None:
    """The reference lists exactly the fields there are, in order, with their defaults."""
    actual = [(name, shown(value)) for name, value in dict(policy()).items()]
    assert tables(PAGE.read_text())[policy.__name__] == actual


def test_the_examples_of_the_page_run() -> None:
    """Every Python block of the reference runs by itself."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})  # noqa: S102 - our own page
