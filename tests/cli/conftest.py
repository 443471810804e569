from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.workplace import Workplace, workplace_in


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """A working directory of this test's own."""
    with workplace_in(tmp_path, monkeypatch) as place:
        yield place
