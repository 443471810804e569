"""Which policies a run has: from a file, from the settings, or from beside the task's class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ergon_framework.app.assembly.roles import Kind, Role
from ergon_framework.app.settings import policy_from_toml
from ergon_framework.app.settings.sections import NamedPolicy
from ergon_framework.errors import WiringError
from ergon_framework.ports.settings_model import explain
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy

_Policy = TypeVar("_Policy", ConsumerPolicy, ProducerPolicy)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says about the policy."""

    file: Path | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies that were given; None where nothing was said."""

    consumer: ConsumerPolicy | None = None
    producer: ProducerPolicy | None = None

    def main(self, kind: Kind) -> ConsumerPolicy | ProducerPolicy:
        """The policy of the run itself: the consumer's, except for a pure producer."""
        if kind.role is Role.PRODUCER:
            return self.producer or ProducerPolicy()
        return self.consumer or ConsumerPolicy()

    def with_main(self, policy: ConsumerPolicy | ProducerPolicy) -> Policies:
        """The same with another policy of the run itself."""
        if isinstance(policy, ProducerPolicy):
            return replace(self, producer=policy)
        return replace(self, consumer=policy)

    def or_named(self, name: str, policy: NamedPolicy, kind: Kind) -> Policies:
        """The same, and a policy by name for the run itself if nothing was said about that."""
        side = "producer" if kind.role is Role.PRODUCER else "consumer"
        if getattr(self, side) is not None:
            return self  # the named one is beneath it already
        found = getattr(policy, side)
        if found is None:
            raise WiringError(
                f"the policy {name!r} does not fit a {side}, which this task is",
                remedy="name one whose keys are those of its policy",
            )
        return self.with_main(found)

    def check_taken(self, task: str, taken: int, kind: Kind) -> None:
        """Refuse a policy that nobody would ever look at."""
        if self.consumer is not None and not kind.consumes:
            raise _unused("consumer", f"{task} does not consume")
        if self.producer is not None and not kind.produces:
            raise _unused("producer", f"{task} does not produce")
        if taken == 0 and (self.consumer or self.producer):
            raise _unused(
                "", f"{task}.execute takes none", "let it take one: execute(self, policy)"
            )
        if taken < 2 and kind.role is Role.HYBRID and self.producer is not None:
            raise _unused(
                "producer",
                f"{task}.execute takes only the consumer's",
                "write execute(self, consumer_policy, producer_policy)",
            )


def choose_policies(
    kind: Kind, given: Policies, module: ModuleType, overrides: Overrides
) -> Policies:
    """The file comes first, then the settings, then the module; ``limit`` changes what it is."""
    chosen = given
    if kind.consumes and given.consumer is None:
        found = _beside(module, ConsumerPolicy, ["consumer_policy", "policy"])
        chosen = replace(chosen, consumer=found)
    if kind.produces and given.producer is None:
        names = ["producer_policy"] if kind.consumes else ["producer_policy", "policy"]
        chosen = replace(chosen, producer=_beside(module, ProducerPolicy, names))
    if overrides.file is not None:
        chosen = chosen.with_main(policy_from_toml(type(chosen.main(kind)), overrides.file))
    if overrides.limit is not None:
        main = chosen.main(kind)
        loop = main.loop.model_copy(update={"limit": overrides.limit})
        chosen = chosen.with_main(main.model_copy(update={"loop": loop}))
    return chosen


def _beside(module: ModuleType, model: type[_Policy], names: Sequence[str]) -> _Policy | None:
    """The policy that stands in the task's module under the first of these names."""
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, BaseModel | Mapping):
            return _checked(model, value, f"{module.__name__}.{name}", names[0])
    return None


def _checked(model: type[_Policy], value: object, where: str, own: str) -> _Policy:
    if isinstance(value, model):
        return value
    if not isinstance(value, Mapping):
        raise WiringError(
            f"{where} is a {type(value).__name__}, but this run needs a {model.__name__}",
            remedy=f"call the {model.__name__} {own}",
        )
    try:
        return model.model_validate(dict(value))
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False)
        told = "; ".join(
            f"{'.'.join(str(key) for key in each['loc'])}: {explain(each)}" for each in mistakes
        )
        raise WiringError(
            f"{where} is no {model.__name__}: {told}", remedy="see docs/reference/policies.md"
        ) from error


def _unused(which: str, why: str, remedy: str = "remove it") -> WiringError:
    return WiringError(f"a {which} policy is given, but {why}".replace("  ", " "), remedy=remedy)
