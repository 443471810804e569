"""Adding one job: one statement that commits by itself, and the notification after it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.statements import statements
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.postgres.pipeline import Pipeline, Result
from ergon_framework.testing.suites.jobstore.under_test import ids_of, new

pytestmark = pytest.mark.req("SCALE:jobs-postgres")


def test_a_plain_job_takes_one_statement(jobs_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has no transaction to begin and to end, and hears all in one packet."""
    said: list[bytes] = []
    sent: list[int] = []
    execute, sync = Pipeline.execute, Pipeline.sync

    def heard(
        pipeline: Pipeline, statement: bytes, values: Mapping[str, Any] | None = None
    ) -> Result:
        said.append(statement)
        return execute(pipeline, statement, values)

    def counted(pipeline: Pipeline) -> None:
        sent.append(len(said))
        sync(pipeline)

    with closing(PostgresJobStore(jobs_url)) as store:
        monkeypatch.setattr(Pipeline, "execute", heard)
        monkeypatch.setattr(Pipeline, "sync", counted)
        store.add([new("a")])
        names = statements("jobs.sql")
        assert said == [names["insert_plain"], names["notify"]]
        assert sent == [2]
        monkeypatch.undo()
        assert ids_of(store.search(Search())) == ["a"]


def test_all_of_them_or_none(jobs_url: str) -> None:
    """One job that cannot be added keeps the others of its call out, without a BEGIN."""
    with closing(PostgresJobStore(jobs_url)) as store:
        store.add([new("a")])
        with pytest.raises(DuplicateJobError):
            store.add([new("b"), new("a"), new("c")])
        assert ids_of(store.search(Search())) == ["a"]
