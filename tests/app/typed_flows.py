"""What type checkers must understand about steps of flows: read by them, never run.

``make check`` gives this file to mypy and ``make pyright`` to pyright. Each ``assert_type`` must
hold, and each line marked as an error must be one.
"""

from __future__ import annotations

from typing import assert_type

from ergon_framework import App
from ergon_framework.jobs.flows import Step

app = App()


@app.job
def fetch(city: str) -> list[int]:
    """One parameter."""
    return [len(city)]


@app.job
async def publish(value: int, *, unit: str = "C") -> str:
    """A parameter for the result of the step before it, and an option."""
    return f"{value} {unit}"


@app.job
def tidy() -> None:
    """No parameters."""


# ---- with all arguments, or without the first ----------------------------------------------------

one = fetch.step("Oslo")
assert_type(one, Step[list[int]])
assert_type(fetch.step(), Step[list[int]])
assert_type(fetch.step(city="Oslo"), Step[list[int]])
assert_type(fetch.options(priority=3).step("Oslo"), Step[list[int]])
assert_type(tidy.step(), Step[None])
assert_type(one.without_result(), Step[list[int]])
publish.step(5, unit="F")
publish.step(unit="F")
publish.step(one.result, unit=one.result)

# ---- mistakes ------------------------------------------------------------------------------------

fetch.step(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
fetch.step("Oslo", "Rome")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
fetch.step(town="Oslo")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
publish.step(unit=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
tidy.step("Oslo")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
