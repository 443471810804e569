"""From the name of a task to a checked ``Wiring``: its role, its policies and its factories.

Nothing is built here: :mod:`ergon_framework.app.lifespan` builds, opens and closes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ergon_framework.app.factories import Factory, connector_factory, prototype, service_factory
from ergon_framework.app.imports import find, is_reference, module_of
from ergon_framework.app.settings import ServiceSettings, Settings, TaskSettings, policy_from_toml
from ergon_framework.app.settings.sections import ConnectorSettings, NamedPolicy
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.errors import HookError, WiringError
from ergon_framework.ports.settings_model import explain
from ergon_framework.task.base import BaseAsyncTask, BaseTask, choose_connector
from ergon_framework.task.functions import FunctionConsumer
from ergon_framework.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from ergon_framework.task.mixins.plans import (
    check_copies,
    check_retry_owner,
    fetch_method,
    find_hook,
    require_hook,
)
from ergon_framework.task.mixins.policies import ConsumerPolicy, ProducerPolicy
from ergon_framework.task.mixins.producer import AsyncProducerMixin, ProducerMixin
from ergon_framework.task.ready import AsyncProducerTask, ProducerTask


class Role(StrEnum):
    """What the engine does with a task."""

    CONSUMER = "consumer"
    PRODUCER = "producer"
    HYBRID = "hybrid"  # consumes, and produces from inside
    PLAIN = "plain"  # only an execute of its own


@dataclass(frozen=True, slots=True)
class TaskKind:
    """A role in a colour."""

    role: Role
    is_async: bool

    @property
    def consumes(self) -> bool:
        """Whether the task reads from a connector."""
        return self.role in (Role.CONSUMER, Role.HYBRID)

    @property
    def produces(self) -> bool:
        """Whether the task has the hooks of a producer."""
        return self.role in (Role.PRODUCER, Role.HYBRID)


def kind_of(task: type[BaseTask]) -> TaskKind:
    """The kind of a task class, from its base classes."""
    consumes = issubclass(task, ConsumerMixin | AsyncConsumerMixin)
    produces = issubclass(task, ProducerMixin | AsyncProducerMixin)
    has_threads = issubclass(task, ConsumerMixin | ProducerMixin)
    is_async = issubclass(task, AsyncConsumerMixin | AsyncProducerMixin)
    if has_threads and is_async:
        raise WiringError(
            f"{task.__name__} mixes synchronous and asynchronous mixins",
            remedy="take both from one colour: ConsumerMixin and ProducerMixin, or the Async ones",
        )
    if not consumes and not produces:
        return TaskKind(Role.PLAIN, is_async=issubclass(task, BaseAsyncTask))
    role = Role.HYBRID if consumes and produces else Role.CONSUMER if consumes else Role.PRODUCER
    return TaskKind(role, is_async)


def execution_of(task: Any, kind: TaskKind) -> Callable[..., Any]:
    """What running the task means: its ``execute``, or for a consumer to consume."""
    execute = getattr(task, "execute", None)
    if callable(execute):
        return execute  # type: ignore[no-any-return]
    if kind.consumes:
        return task.consume_transactions  # type: ignore[no-any-return]
    name = _name(task)
    raise HookError(
        f"{name} has no execute, so there is nothing to run",
        remedy=f"derive {name} from ProducerTask and write transactions(), or write execute(policy)"
        if kind.produces
        else "write execute(self), or derive it from ConsumerTask or ProducerTask",
    )


def policies_taken(task: Any, kind: TaskKind) -> int:
    """How many policies the execution takes: a hybrid's may take both."""
    execute = execution_of(task, kind)
    most = 2 if kind.role is Role.HYBRID else 0 if kind.role is Role.PLAIN else 1
    # As many as it takes: an execute(self, policy=None) shall get its policy.
    for count in range(most, -1, -1):
        if accepts(execute, count):
            return count
    raise HookError(
        f"{_name(task)}.execute cannot be called with its policy alone",
        remedy="define it as execute(self, policy)" if most else "define it as execute(self)",
    )


def check_hooks(task: Any, kind: TaskKind) -> None:
    """Refuse hooks that are missing, cannot be called or have the wrong colour."""
    is_async = kind.is_async
    if kind.consumes:
        mixin: Any = AsyncConsumerMixin if is_async else ConsumerMixin
        _check_hooks(task, mixin, "process_transaction", "handle_transaction", is_async=is_async)
    if kind.produces:
        mixin = AsyncProducerMixin if is_async else ProducerMixin
        _check_hooks(task, mixin, "produce_transaction", "handle_produce", is_async=is_async)
    _check_input(type(task))


def _check_input(task: type) -> None:
    """A ready-made producer must say what it produces, unless it executes in a way of its own."""
    for ready in (ProducerTask, AsyncProducerTask):
        if not issubclass(task, ready) or task.execute is not ready.execute:
            continue
        if task.transactions is ready.transactions:
            raise HookError(
                f"{task.__name__} has no transactions",
                remedy="define it: def transactions(self), returning what is to be produced",
            )


def check_connectors(task: Any, kind: TaskKind, policy: ConsumerPolicy | None) -> None:
    """Refuse a name that is unknown or ambiguous, and a connector of the wrong colour.

    A connector that is None is not known yet, and gets the benefit of the doubt.
    """
    if not kind.consumes:
        return
    policy = policy or ConsumerPolicy()
    check_copies(policy)
    steps = policy.steps
    name, connector = choose_connector(task, steps.fetch.connector_name)
    if connector is not None:
        fetch_method(name, connector, steps.fetch.extra, is_async=kind.is_async)
        check_retry_owner(name, connector, steps.process.retry.max_attempts)


def _check_hooks(task: Any, mixin: Any, step: str, handlers: str, *, is_async: bool) -> None:
    require_hook(task, step, is_async=is_async, default=getattr(mixin, step))
    for name in (f"{handlers}_success", f"{handlers}_exception"):
        find_hook(task, name, 2, is_async=is_async, default=getattr(mixin, name))


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with ``count`` positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _name(task: Any) -> str:
    return task.__name__ if isinstance(task, type) else type(task).__name__


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

    def main(self, kind: TaskKind) -> ConsumerPolicy | ProducerPolicy:
        """The policy of the run itself: the consumer's, except for a pure producer."""
        if kind.role is Role.PRODUCER:
            return self.producer or ProducerPolicy()
        return self.consumer or ConsumerPolicy()

    def with_main(self, policy: ConsumerPolicy | ProducerPolicy) -> Policies:
        """A copy with another policy for the run itself."""
        if isinstance(policy, ProducerPolicy):
            return replace(self, producer=policy)
        return replace(self, consumer=policy)

    def or_named(self, name: str, policy: NamedPolicy, kind: TaskKind) -> Policies:
        """A copy in which a policy given by name counts for the run, unless one is set already."""
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

    def check_taken(self, task: str, taken: int, kind: TaskKind) -> None:
        """Refuse a policy that this kind of task does not use."""
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
    kind: TaskKind, given: Policies, module: ModuleType, overrides: Overrides
) -> Policies:
    """The file comes first, then the settings, then the module; ``limit`` changes what it is."""
    chosen = given
    if kind.consumes and given.consumer is None:
        found = _policy_in_module(module, ConsumerPolicy, ["consumer_policy", "policy"])
        chosen = replace(chosen, consumer=found)
    if kind.produces and given.producer is None:
        names = ["producer_policy"] if kind.consumes else ["producer_policy", "policy"]
        chosen = replace(chosen, producer=_policy_in_module(module, ProducerPolicy, names))
    if overrides.file is not None:
        chosen = chosen.with_main(policy_from_toml(type(chosen.main(kind)), overrides.file))
    if overrides.limit is not None:
        main = chosen.main(kind)
        loop = main.loop.model_copy(update={"limit": overrides.limit})
        chosen = chosen.with_main(main.model_copy(update={"loop": loop}))
    return chosen


def _policy_in_module(
    module: ModuleType, model: type[_Policy], names: Sequence[str]
) -> _Policy | None:
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
        problems = "; ".join(
            f"{'.'.join(str(key) for key in each['loc'])}: {explain(each)}" for each in mistakes
        )
        raise WiringError(
            f"{where} is no {model.__name__}: {problems}", remedy="see docs/reference/policies.md"
        ) from error


def _unused(which: str, why: str, remedy: str = "remove it") -> WiringError:
    return WiringError(f"a {which} policy is given, but {why}".replace("  ", " "), remedy=remedy)


_SECTION = "tasks."
Builder = Callable[[], Mapping[str, Any]]
Group = Mapping[str, Factory] | Builder
"""Where connectors or services come from: a maker for each, or one function for all of them."""


@dataclass(frozen=True, slots=True)
class RunTarget:
    """What is to be run: a name in the settings, or a reference to a class."""

    name: str
    reference: str
    settings: TaskSettings | None = None


@dataclass(frozen=True, slots=True)
class Wiring:
    """A checked plan of what will be built and run. Nothing in it has been built or connected."""

    name: str
    task: type[BaseTask] | BaseTask
    kind: TaskKind
    policies: Policies
    connectors: Group
    services: Group
    keeps_connectors: bool = False
    """Whether the connectors of a task that exists are opened and closed by somebody else."""

    @property
    def task_name(self) -> str:
        """The name of the class."""
        return (self.task if isinstance(self.task, type) else type(self.task)).__name__

    def check_connectors(self, connectors: Mapping[str, Any]) -> None:
        """Refuse connectors that do not fit the task and its policy."""
        specimen = self.specimen()
        if specimen is None:
            # A class whose instances cannot be looked at without __init__.
            return  # the engine will look again
        if isinstance(self.task, type):
            specimen.connectors = connectors
        check_connectors(specimen, self.kind, self.policies.consumer)

    def check_workers(self, count: int) -> None:
        """Refuse parts that only one process at a time may have when there will be several."""
        for group in (self.connectors, self.services):
            for maker in group.values() if isinstance(group, Mapping) else ():
                if count > 1 and maker.is_exclusive:
                    raise WiringError(
                        f"{maker.label}: only one process at a time may have it, and {count} "
                        "workers are asked for",
                        remedy="use one worker, or let build_connectors() give each worker one of "
                        "its own, for example a directory named by ERGON_WORKER_ID",
                        details={"key": ["workers"]},
                    )

    def specimen(self) -> Any:
        """An object to look up hooks on: the task if it exists, or a stand-in of its class."""
        return prototype(self.task) if isinstance(self.task, type) else self.task

    def execute(self, task: BaseTask) -> Any:
        """Run the task with as many of its policies as it takes."""
        policies = (self.policies.main(self.kind), self.policies.producer)
        return execution_of(task, self.kind)(*policies[: policies_taken(task, self.kind)])


def target_of(text: str, settings: Settings) -> RunTarget:
    """What ``text`` means, found without importing anything of the user's."""
    refuse_ambiguous_names(settings)
    name = text if text in settings.tasks else text.removeprefix(_SECTION)
    if name in settings.tasks:
        return RunTarget(name, settings.tasks[name].task, settings.tasks[name])
    if not is_reference(text):
        hint = did_you_mean(text, list(settings.tasks))
        raise WiringError(
            f"there is no task {text!r} in the settings; {hint}",
            remedy="write module:Class, or a name from [tasks]",
        )
    named = [name for name, task in settings.tasks.items() if task.task == text]
    if len(named) > 1:
        raise WiringError(
            f"{text} stands in the settings under several names: {', '.join(named)}",
            remedy="run it by one of these names",
        )
    return RunTarget(named[0], text, settings.tasks[named[0]]) if named else RunTarget(text, text)


def wire(target: RunTarget, settings: Settings, overrides: Overrides | None = None) -> Wiring:
    """Import the task, choose its parts and policies, and check that all of them fit."""
    module = module_of(target.reference)
    found = find(module, target.reference)
    task = _task_of(found)
    _check_is_task(task, target.reference)
    kind = kind_of(task if isinstance(task, type) else type(task))
    given = _given_policies(target, settings, kind)
    if isinstance(found, FunctionConsumer):
        given = replace(given, consumer=found.policy_under(given.consumer))
    wiring = Wiring(
        target.name,
        task,
        kind,
        choose_policies(kind, given, module, overrides or Overrides()),
        _group("connectors", target, task, settings.connectors, _connector_factory(settings)),
        _group("services", target, task, settings.services, _service_factory(settings)),
    )
    _check(wiring)
    return wiring


def _check(wiring: Wiring) -> None:
    task, kind = wiring.task, wiring.kind
    specimen = wiring.specimen()
    if specimen is not None:
        check_hooks(specimen, kind)
        wiring.policies.check_taken(wiring.task_name, policies_taken(specimen, kind), kind)
    if isinstance(task, type):
        Factory(task.__name__, task, {"connectors": {}, "services": {}}).check()
    for group in (wiring.connectors, wiring.services):
        for maker in group.values() if isinstance(group, Mapping) else ():
            maker.check()
    if not isinstance(task, type):
        wiring.check_connectors(task.connectors)
    elif isinstance(wiring.connectors, Mapping):
        # Looked at by stand-ins of their classes: nothing is built for a check.
        makers = wiring.connectors
        wiring.check_connectors({name: prototype(each.factory) for name, each in makers.items()})


def _check_is_task(task: object, reference: str) -> None:
    if isinstance(task, BaseTask) or (isinstance(task, type) and issubclass(task, BaseTask)):
        return
    what = "a class, but" if isinstance(task, type) else f"of type {type(task).__name__}, and"
    raise WiringError(
        f"{reference} is {what} no task",
        remedy="derive it from ConsumerTask or another task class, or decorate a function with"
        " @consumer(...); what an App declares is run by the App, named as module:app",
    )


def refuse_ambiguous_names(settings: Settings) -> None:
    """Refuse two names that one environment variable would mean."""
    seen: dict[str, str] = {}
    for name in settings.tasks:
        other = seen.setdefault(name.lower().replace("-", "_"), name)
        if other != name:
            raise WiringError(
                f"two tasks in the settings have the same name: {other!r} and {name!r}",
                remedy="rename one; case does not count, nor does '-' against '_'",
            )


def _task_of(found: Any) -> Any:
    """The task of a consumer function: with the connector that it names itself, if it does."""
    if not isinstance(found, FunctionConsumer):
        return found
    is_named = found.source is None or isinstance(found.source, str)
    return found.task_type() if is_named else found.task()


def _given_policies(target: RunTarget, settings: Settings, kind: TaskKind) -> Policies:
    entry = target.settings
    given = Policies() if entry is None else Policies(entry.consumer, entry.producer)
    if entry is not None and entry.policy is not None:
        given = given.or_named(entry.policy, settings.policies[entry.policy], kind)
    return given


def _connector_factory(settings: Settings) -> Callable[[str, ConnectorSettings], Factory]:
    """Connectors by name; those of our own parts find the rest of their options elsewhere."""
    return lambda name, entry: connector_factory(name, entry, settings)


def _service_factory(settings: Settings) -> Callable[[str, ServiceSettings | None], Factory]:
    """Services by name; a name that is no service is that of a provider."""

    def make(name: str, entry: ServiceSettings | None) -> Factory:
        if entry is not None:
            return service_factory(name, entry)
        from ergon_framework.app.providers import service_of

        return service_of(name, settings)

    return make


def _group(
    what: str,
    target: RunTarget,
    task: Any,
    available: Mapping[str, Any],
    make: Callable[[str, Any], Factory],
) -> Group:
    """What the settings list for the task, else what its class builds, else all there is."""
    listed: tuple[str, ...] = getattr(target.settings, what, ())
    if not isinstance(task, type):
        if listed:
            raise WiringError(
                f"tasks.{target.name}.{what}: {target.reference} is an instance, "
                f"which has its {what} already",
                remedy=f"remove the {what} from the settings, or name the class",
            )
        return {}
    builder = getattr(task, f"build_{what}", None)
    if not listed and builder is not None:
        if not callable(builder) or not accepts(builder, 0):
            raise WiringError(
                f"{target.reference}.build_{what} cannot be called without arguments",
                remedy="make it a classmethod or a staticmethod",
            )
        return builder  # type: ignore[no-any-return]
    names = tuple(available) if target.settings is None else listed
    return {name: make(name, available.get(name)) for name in names}
