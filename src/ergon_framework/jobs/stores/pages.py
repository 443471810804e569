"""The pages in which the stores on SQL read the jobs of a search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ergon_framework.jobs.stores.unreadable import SkippedRows
from ergon_framework.ports.flow import Flow
from ergon_framework.ports.jobstore import Job, Unreadable

PAGE_SIZE = 200
ABOVE_ALL = 2**63 - 1
"""A number above that of every row: the first page is below it."""


class JobRowPage(NamedTuple):
    """What was read: the jobs, and the rows that are none."""

    jobs: list[Job]
    unreadable: list[Unreadable]
    size: int
    last: int  # the number of the last row


MOST_LISTED = 10_000
"""Jobs in each way to wait, to run or to end that are listed before a search of one queue.

Where there are more, a page of them is soon found from the newest job of the store on.
"""

ReadPage = Callable[[int, int], JobRowPage]
"""Reads at most so many rows (the first number) below a row (the second), the newest first."""


def jobs_in_pages(
    read: ReadPage,
    below: int | None,
    limit: int | None,
    log: SkippedRows,
    *,
    page_size: int = PAGE_SIZE,
) -> Iterator[Job]:
    """The jobs of one page after another; between two pages nothing of the store is held.

    Rows that cannot be read are left out, and ``log`` is told. They do not count for ``limit``.
    """
    last = ABOVE_ALL if below is None else below
    left = ABOVE_ALL if limit is None else limit
    while left > 0:
        size = min(page_size, left)
        page = read(size, last)
        yield from page.jobs
        for each in page.unreadable:
            log.left_out(each)
        if page.size < size:
            return
        left -= len(page.jobs)
        last = page.last


def page_among(
    numbers: Sequence[int], read: Callable[[Sequence[int], int], JobRowPage], size: int, below: int
) -> JobRowPage:
    """A page of the rows with these numbers, the highest first; ``read`` finds those that match.

    It is called with some of the numbers and how many rows are wanted.
    """
    found = JobRowPage([], [], 0, 0)
    first = bisect_left(numbers, -below + 1, key=lambda number: -number)
    while first < len(numbers) and found.size < size:
        page = read(numbers[first : first + PAGE_SIZE], size - found.size)
        found = JobRowPage(
            found.jobs + page.jobs,
            found.unreadable + page.unreadable,
            found.size + page.size,
            page.last or found.last,
        )
        first += PAGE_SIZE
    return found


def flow_page(found: Sequence[tuple[int, Flow]], limit: int) -> tuple[list[Flow], int | None]:
    """The first of these flows with their places, and where the next page begins.

    ``found`` has one more than the limit of each state, where there are so many.
    """
    ordered = sorted(found, key=lambda each: each[0], reverse=True)
    shown = ordered[:limit]
    following = shown[-1][0] if shown and len(ordered) > limit else None
    return [flow for _, flow in shown], following
