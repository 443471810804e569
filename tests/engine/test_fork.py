"""What is renewed in a forked child."""

from __future__ import annotations

import pytest

from ergon_framework.engine import atfork


class Part:
    """Counts its renewals, or fails at them."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.renewals = 0

    def renew(self) -> None:
        self.renewals += 1
        if self.is_broken:
            raise LookupError("broken")


def test_one_that_fails_holds_up_nobody() -> None:
    """Everything else is renewed, and the failure is told."""
    parts = [Part(), Part(is_broken=True), Part()]
    for part in parts:
        atfork.renew_after_fork(part)
    with pytest.raises(ExceptionGroup) as caught:
        atfork.renew_all()
    assert caught.group_contains(LookupError, match="broken")
    assert [part.renewals for part in parts] == [1, 1, 1]
