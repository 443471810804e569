"""What enqueuing a job gives back: its id, which can also be asked about the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.jobstore import Added

if TYPE_CHECKING:
    from ergon_framework.jobs.client import JobClient


class _JobId(str):
    """Text that can be stored, sent and compared like any other; its copies are plain text."""

    __slots__ = ("is_new", "replaced")

    is_new: bool
    """False: a job with the same unique key was there, and this is its id."""
    replaced: str | None
    """The id of the job that was cancelled for this one."""

    @property
    def id(self) -> str:
        """The plain id."""
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (str, (str(self),))


class EnqueuedJob(_JobId):
    """The id of a job, which remembers the client it came from and can be asked about the job."""

    __slots__ = ("_client",)

    _client: JobClient

    @classmethod
    def of(cls, added: Added, client: JobClient) -> Self:
        """What a store answered, as a client hands it out."""
        made = cls(added.id)
        made.is_new = added.is_new
        made.replaced = added.replaced
        made._client = client
        return made

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._client.status(self)

    def result(self, timeout: float | None = None) -> Any:
        """What the job returned; see :meth:`JobClient.result`."""
        return self._client.result(self, timeout)

    def cancel(self) -> bool:
        """Cancel it while it waits; see :meth:`JobClient.cancel`."""
        return self._client.cancel(self)
