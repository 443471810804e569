"""A server that dies under the processes that use it."""

from __future__ import annotations

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Search, Topic
from ergon_framework.testing.suites.jobstore.under_test import ask, new
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-postgres", "SCALE:campaign")]
WAIT = 60


@pytest.mark.req("SCALE:fleet-outage")
def test_a_server_that_is_killed_and_comes_back() -> None:
    """Calls fail meanwhile with an error that says so; nothing is lost, and nobody restarts."""
    server = PostgresServer(is_durable=True)
    try:
        server.start()
        store = PostgresJobStore(server.url())
        store.add([new("a"), new("b")])
        [job] = store.settle_and_claim([], ask(1))[1].jobs
        subscription = store.subscribe(Topic.WORK)
        server.kill()
        for call in (lambda: store.add([new("c")]), lambda: store.settle_and_claim([], ask(1))):
            with pytest.raises(StoreUnavailableError):
                call()
        server.start()
        assert subscription.wait(WAIT)  # for whatever was missed
        assert [each.id for each in store.search(Search(queue="default"))] == ["b", "a"]
        assert store.find("a") is not None
        assert [each.id for each in store.settle_and_claim([], ask(5))[1].jobs] == ["b"]
        assert job.id == "a"
        store.close()
    finally:
        server.remove()
