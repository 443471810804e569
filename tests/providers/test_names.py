"""Everything that users name is at the top of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ergon_framework import providers


@pytest.mark.parametrize("name", providers.__all__)
def test_each_name_is_found_under_its_own_name(name: str) -> None:
    """And is the object of its module, which a second look-up gives again."""
    found = getattr(providers, name)
    assert found is getattr(providers, name)
    if isinstance(found, type):
        assert found.__name__ == name
    assert name in dir(providers)


def test_a_name_that_does_not_exist_is_refused_as_any_module_does() -> None:
    """So that hasattr and a misspelt import behave."""
    with pytest.raises(AttributeError, match="RetryPolicies"):
        _ = providers.RetryPolicies
    with pytest.raises(ImportError, match="RetryPolicies"):
        from ergon_framework.providers import RetryPolicies  # noqa: F401


def test_the_package_imports_nothing_by_itself() -> None:
    """A script that declares a provider and does not call it starts quickly."""
    program = (
        "import sys, ergon_framework.providers;"
        "print([each for each in sys.modules if each.startswith('ergon_framework.providers.')])"
    )
    done = subprocess.run(  # noqa: S603 - the program is above
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
