"""The composition root: from a task's name to all it needs, checked before anything connects.

``wire`` imports the user's classes and checks that all parts fit; it builds nothing. Only
:mod:`.parts` builds, opens and closes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ergon_framework.app.assembly.building import Maker, connector_maker, service_maker, stand_in
from ergon_framework.app.assembly.roles import (
    Kind,
    accepts,
    check_connectors,
    check_hooks,
    execution_of,
    kind_of,
    policies_taken,
)
from ergon_framework.app.assembly.run_policies import Overrides, Policies, choose_policies
from ergon_framework.app.imports import find, is_reference, module_of
from ergon_framework.app.settings import ServiceSettings, Settings, TaskSettings
from ergon_framework.app.settings.sections import ConnectorSettings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.errors import WiringError
from ergon_framework.task.base import BaseTask

_SECTION = "tasks."
Builder = Callable[[], Mapping[str, Any]]
Group = Mapping[str, Maker] | Builder
"""Where connectors or services come from: a maker for each, or one function for all of them."""


@dataclass(frozen=True, slots=True)
class Target:
    """What somebody asked to run: a name in the settings, or a reference to a class."""

    name: str
    reference: str
    settings: TaskSettings | None = None


@dataclass(frozen=True, slots=True)
class Wiring:
    """A checked plan of what will be built and run. Nothing in it has been built or connected."""

    name: str
    task: type[BaseTask] | BaseTask
    kind: Kind
    policies: Policies
    connectors: Group
    services: Group

    @property
    def task_name(self) -> str:
        """The name of the class."""
        return (self.task if isinstance(self.task, type) else type(self.task)).__name__

    def check_connectors(self, connectors: Mapping[str, Any]) -> None:
        """Refuse connectors that do not fit the task and its policy."""
        specimen = self.specimen()
        if specimen is None:
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
        """Something to look for hooks in: the task that exists, or a stand-in of its class."""
        return stand_in(self.task) if isinstance(self.task, type) else self.task

    def execute(self, task: BaseTask) -> Any:
        """Run the task with as many of its policies as it takes."""
        policies = (self.policies.main(self.kind), self.policies.producer)
        return execution_of(task, self.kind)(*policies[: policies_taken(task, self.kind)])


def target_of(text: str, settings: Settings) -> Target:
    """What ``text`` means, found without importing anything of the user's."""
    refuse_twins(settings)
    name = text if text in settings.tasks else text.removeprefix(_SECTION)
    if name in settings.tasks:
        return Target(name, settings.tasks[name].task, settings.tasks[name])
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
    return Target(named[0], text, settings.tasks[named[0]]) if named else Target(text, text)


def wire(target: Target, settings: Settings, overrides: Overrides | None = None) -> Wiring:
    """Import the task, choose its parts and policies, and check that all of them fit."""
    module = module_of(target.reference)
    task = find(module, target.reference)
    _check_is_task(task, target.reference)
    kind = kind_of(task if isinstance(task, type) else type(task))
    wiring = Wiring(
        target.name,
        task,
        kind,
        _policies(target, settings, module, kind, overrides or Overrides()),
        _group("connectors", target, task, settings.connectors, _connector_maker(settings)),
        _group("services", target, task, settings.services, _service_maker(settings)),
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
        Maker(task.__name__, task, {"connectors": {}, "services": {}}).check()
    for group in (wiring.connectors, wiring.services):
        for maker in group.values() if isinstance(group, Mapping) else ():
            maker.check()
    if not isinstance(task, type):
        wiring.check_connectors(task.connectors)
    elif isinstance(wiring.connectors, Mapping):
        makers = wiring.connectors
        wiring.check_connectors({name: stand_in(each.factory) for name, each in makers.items()})


def _check_is_task(task: object, reference: str) -> None:
    if isinstance(task, BaseTask) or (isinstance(task, type) and issubclass(task, BaseTask)):
        return
    what = "a class, but" if isinstance(task, type) else f"of type {type(task).__name__}, and"
    raise WiringError(
        f"{reference} is {what} no task", remedy="derive it from ConsumerTask or another task class"
    )


def refuse_twins(settings: Settings) -> None:
    """Two names that one environment variable would mean are one name too many."""
    seen: dict[str, str] = {}
    for name in settings.tasks:
        other = seen.setdefault(name.lower().replace("-", "_"), name)
        if other != name:
            raise WiringError(
                f"two tasks in the settings have the same name: {other!r} and {name!r}",
                remedy="rename one; case does not count, nor does '-' against '_'",
            )


def _policies(
    target: Target, settings: Settings, module: ModuleType, kind: Kind, overrides: Overrides
) -> Policies:
    entry = target.settings
    given = Policies() if entry is None else Policies(entry.consumer, entry.producer)
    if entry is not None and entry.policy is not None:
        given = given.or_named(entry.policy, settings.policies[entry.policy], kind)
    return choose_policies(kind, given, module, overrides)


def _connector_maker(settings: Settings) -> Callable[[str, ConnectorSettings], Maker]:
    """Connectors by name; those of our own parts find the rest of their options elsewhere."""
    return lambda name, entry: connector_maker(name, entry, settings)


def _service_maker(settings: Settings) -> Callable[[str, ServiceSettings | None], Maker]:
    """Services by name; a name that is no service is that of a provider."""

    def make(name: str, entry: ServiceSettings | None) -> Maker:
        if entry is not None:
            return service_maker(name, entry)
        from ergon_framework.app.providers import service_of

        return service_of(name, settings)

    return make


def _group(
    what: str,
    target: Target,
    task: Any,
    available: Mapping[str, Any],
    make: Callable[[str, Any], Maker],
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
