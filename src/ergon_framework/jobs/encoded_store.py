"""A job store whose payloads are encoded, for callers who want them plain.

``with_codec`` puts it around a store where ``[jobs.codec]`` asks for it. It encodes arguments of
what is added and decodes what is read. Workers decode the arguments of their claims, and encode
results in their settlements: see ``claims``. What cannot be decoded is left as it is: whoever only
asks for the state of a job needs no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ergon_framework.errors import UnreadableJobError
from ergon_framework.jobs.payload_codec import ENCODED_ARGS, ENCODED_RESULT, PLAIN, PayloadCodec
from ergon_framework.ports.flow import NewFlow
from ergon_framework.ports.jobstore import EnqueueResult, FullJobStore, Job, NewJob, Search

if TYPE_CHECKING:
    from ergon_framework.jobs.settings import JobsSettings

_replace = msgspec.structs.replace


def with_codec(store: FullJobStore, settings: JobsSettings) -> FullJobStore:
    """The store, with the codec of the settings around it if they have one."""
    if not settings.codec.is_set or isinstance(store, EncodedJobStore):
        return store
    return cast("FullJobStore", EncodedJobStore(store, settings.codec.compiled()))


class EncodedJobStore:
    """A store with a codec. All that carries no payload goes straight to the store inside."""

    def __init__(self, store: FullJobStore, codec: PayloadCodec) -> None:
        self.plain = store
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        # Some parts of a store are optional, and callers look whether they are there.
        found = getattr(self.plain, name)
        if name == "add_in":
            return lambda connection, jobs: found(connection, self._encoded(jobs))
        if name == "flows":
            return EncodedFlows(found, self._codec)
        return found

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all of them or none."""
        return self.plain.add(self._encoded(jobs))

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Add the jobs of a schedule."""
        return self.plain.fire(name, expected, next_at, self._encoded(jobs))

    def find(self, job_id: str) -> Job | None:
        """One job."""
        job = self.plain.find(job_id)
        return None if job is None else decoded_job(job, self._codec)

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Jobs that match."""
        return (decoded_job(job, self._codec) for job in self.plain.search(search, limit))

    def _encoded(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        return encoded_jobs(jobs, self._codec)


class EncodedFlows:
    """The flows of such a store. Values of signals are kept as they are: they are compared."""

    def __init__(self, flows: Any, codec: PayloadCodec) -> None:
        self._flows = flows
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._flows, name)
        if name == "add_in":
            return lambda connection, flow, steps: found(
                connection, flow, encoded_jobs(steps, self._codec)
            )
        return found

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps."""
        added: list[EnqueueResult] = self._flows.add(flow, encoded_jobs(steps, self._codec))
        return added

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned; raises PayloadKeyError, for a step cannot run without them."""
        found: Mapping[str, bytes | None] = self._flows.results(ids)
        return {
            each: result and self._codec.decode_result(result) for each, result in found.items()
        }


def results_reader(store: Any) -> Callable[[Sequence[str]], Mapping[str, bytes | None]] | None:
    """What reads plain results of steps from a store; None where it keeps no flows.

    Without a codec of its own a worker still meets what others have encoded: what is compressed it
    reads, and for what is encrypted PayloadKeyError is raised.
    """
    flows = getattr(store, "flows", None)
    if flows is None:
        return None
    is_decoded = isinstance(store, EncodedJobStore)
    return cast("EncodedFlows", flows if is_decoded else EncodedFlows(flows, PLAIN)).results


def encoded_jobs(jobs: Iterable[NewJob], codec: PayloadCodec) -> list[NewJob]:
    """New jobs as the store keeps them."""
    encoded = []
    for job in jobs:
        args, kwargs = codec.encode_arguments(job.args, job.kwargs)
        encoded.append(job if args is job.args else _replace(job, args=args, kwargs=kwargs))
    return encoded


def decoded_job(job: Job, codec: PayloadCodec) -> Job:
    """A job with plain payloads, as far as the codec can read them."""
    if job.args.startswith(ENCODED_ARGS):
        try:
            args, kwargs = codec.decode_arguments(job.args, job.kwargs)
        except UnreadableJobError:
            pass
        else:
            job = _replace(job, args=args, kwargs=kwargs)
    if job.result is not None and job.result.startswith(ENCODED_RESULT):
        with suppress(UnreadableJobError):
            job = _replace(job, result=codec.decode_result(job.result))
    return job
