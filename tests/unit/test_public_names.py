"""Names that users import: at the top of a package, loaded at their first use."""

from __future__ import annotations

import subprocess
import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType
from typing import Unpack

import pytest

PACKAGES = [
    "ergon_framework",
    "ergon_framework.boundary",
    "ergon_framework.connector",
    "ergon_framework.connector.boundary",
    "ergon_framework.jobs",
    "ergon_framework.providers",
    "ergon_framework.task",
    "ergon_framework.telemetry",
    "ergon_framework.testing",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_is_there(package: str) -> None:
    """Under its own name, shown by dir() before its first use, and the same at each look-up."""
    room = import_module(package)
    assert set(room.__all__) <= set(dir(room))
    assert "__name__" in dir(room)
    for name in room.__all__:
        found = getattr(room, name)
        assert getattr(room, name) is found
        if isinstance(found, type):
            assert found.__name__ == name


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_does_not_exist_is_refused_as_any_module_does(package: str) -> None:
    """So that hasattr and a misspelt import behave; the interpreter can say what was meant."""
    room = import_module(package)
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'Nothing'") as caught:
        _ = room.Nothing
    assert (caught.value.name, caught.value.obj) == ("Nothing", room)
    with pytest.raises(ImportError, match="Nothing"):
        exec(f"from {package} import Nothing")  # noqa: S102 - the statement that users write


def test_packages_load_nothing_by_themselves() -> None:
    """A script that imports a package and uses one of its names pays for that one."""
    program = f"""
import sys
for package in {PACKAGES!r}:
    __import__(package)
packages = {{*{PACKAGES!r}}}
loaded = {{each for each in sys.modules if each.startswith("ergon_framework.")}} - packages
print(*sorted(each for each in loaded if not each.startswith("ergon_framework.ports")))
"""
    done = subprocess.run(  # noqa: S603 - the program is above
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    # What a Transaction, which every connector has, is made of.
    assert set(done.stdout.split()) <= {
        "ergon_framework.core",
        "ergon_framework.errors",
        "ergon_framework.lazy_exports",
        "ergon_framework.redaction",
    }


def test_tasks_and_job_clients_start_without_pydantic() -> None:
    """It takes longer to import than all the rest, and is needed where settings are read."""
    program = (
        "import copy, inspect, sys\n"
        "from ergon_framework import AsyncJobClient, AsyncConsumerTask, ConsumerTask, JobClient\n"
        "for each in vars(sys.modules[ConsumerTask.__module__]).values():\n"
        "    inspect.unwrap(each), copy.copy(each)\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(  # noqa: S603 - the program is above
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (package, name)
        for package in ("ergon_framework", "ergon_framework.task")
        for name in import_module(package).__all__
    ]
    + [("ergon_framework.app.job_handlers", "JobHandler")],  # what ``app.job`` makes of a function
)
def test_the_hints_of_public_names_can_be_resolved(package: str, name: str) -> None:
    """As injectors and generators of documentation do, also for names that load late."""
    found = getattr(import_module(package), name)
    if isinstance(found, type | FunctionType):
        typing.get_type_hints(found, include_extras=True)
    for function in functions_of(found):
        for hint in typing.get_type_hints(function, include_extras=True).values():
            for options in typing.get_args(hint) if typing.get_origin(hint) is Unpack else ():
                typing.get_type_hints(options, include_extras=True)


def functions_of(found: object) -> Iterator[FunctionType]:
    """The public methods of a class of ours, and what its properties and class methods call."""
    for base in found.__mro__ if isinstance(found, type) else ():
        if not base.__module__.startswith("ergon_framework."):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") and name != "__init__":
                continue
            called = member.fget if isinstance(member, property) else member
            called = called.__func__ if isinstance(called, classmethod | staticmethod) else called
            if isinstance(called, FunctionType):
                yield called
