"""A process that forks while it has a Redis store."""

from __future__ import annotations

import os

import pytest

from ergon_framework.ports.jobstore import Search, Topic
from ergon_framework.testing.suites.jobstore.under_test import new
from tests.jobs.redis.conftest import Open

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-redis")]
WAIT = 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(open_store: Open) -> None:
    """Parent and child use the store they share, with answers and notifications of their own."""
    store = open_store()
    subscription = store.subscribe(Topic.WORK)
    store.add([new("before")])
    assert subscription.wait(WAIT)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.add([new(f"child-{n}") for n in range(20)])
            heard = store.subscribe(Topic.WORK)
            store.add([new("child-last")])
            code = 0 if heard.wait(WAIT) and store.find("before") is not None else 2
        finally:
            os._exit(code)
    store.add([new(f"parent-{n}") for n in range(20)])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.count(Search()) == 42
    assert subscription.wait(WAIT)
