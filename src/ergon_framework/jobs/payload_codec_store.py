"""A job store that encodes payloads, around another store.

``with_codec`` puts it around a store if ``[jobs.codec]`` asks for it. It encodes the arguments of
added jobs, and decodes what is read. Workers decode the arguments of their claims, and encode
results in their settlements (``settlement``).

A payload that cannot be decoded is left encoded: a caller that only asks for the state of a job
needs no key. A payload in an object store is left there, because many callers read many jobs, or
one job again and again: ``loaded_job`` fetches it.

An object is durable before the row that names it is stored. A crash in between leaves an object
without a row, which ``object_sweep`` removes a day later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ergon_framework.core.retention import JobRetention
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.errors import (
    ConfigurationError,
    DuplicateJobError,
    ErgonError,
    PayloadObjectError,
    StoreError,
    UnreadableJobError,
)
from ergon_framework.jobs.payload_codec import (
    ENCODED_ARGS,
    ENCODED_RESULT,
    PLAIN,
    PayloadCodec,
    names_object,
    object_of,
)
from ergon_framework.jobs.payload_objects import MAX_HEADER
from ergon_framework.ports.flow import NewFlow
from ergon_framework.ports.jobstore import (
    EnqueueResult,
    FullJobStore,
    Job,
    NewJob,
    Search,
    Settlement,
)
from ergon_framework.storage.failpoints import declare, failpoint

if TYPE_CHECKING:
    from ergon_framework.jobs.settings import JobsSettings

logger = logging.getLogger("ergon.jobs")
_replace = msgspec.structs.replace

LONG = 3600.0
"""Seconds between writing an object and its row after which the store checks that the object still
exists: a process can be suspended for a day, and a sweep meanwhile takes its object for one that
nobody needs.
"""

declare("jobs.object.stored", "jobs.object.named")


def with_codec(store: FullJobStore, settings: JobsSettings) -> FullJobStore:
    """The store, with the codec of the settings around it if they have one."""
    if not settings.codec.is_set or isinstance(store, PayloadCodecStore):
        return store
    return cast("FullJobStore", PayloadCodecStore(store, settings.codec.compiled().of_store(store)))


def codec_of(store: object, settings: JobsSettings) -> PayloadCodec:
    """The codec of a store, with the owner of the objects that it writes."""
    return store.codec if isinstance(store, PayloadCodecStore) else settings.codec.compiled()


class PayloadCodecStore:
    """A store with a codec around it. Calls without payloads go straight to the inner store."""

    def __init__(self, store: FullJobStore, codec: PayloadCodec) -> None:
        self.plain = store
        self.codec = codec

    def __getattr__(self, name: str) -> Any:
        # Some methods of a store are optional, and callers check whether they exist.
        found = getattr(self.plain, name)
        if name == "add_in":
            return lambda connection, jobs: stored(
                jobs, self.codec, lambda encoded: found(connection, encoded)
            )
        if name == "flows":
            return PayloadCodecFlows(found, self.codec)
        return found

    @property
    def retention(self) -> JobRetention:
        """How long the inner store keeps jobs that it ends by itself."""
        return self.plain.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.plain.retention = retention

    @property
    def plain_flows(self) -> Any:
        """The flows of the store inside."""
        return getattr(self.plain, "flows")  # noqa: B009 - not every store has them

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all of them or none."""
        return stored(jobs, self.codec, self.plain.add)

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job, and add one in its place."""

        def store(encoded: list[NewJob]) -> list[EnqueueResult]:
            return [EnqueueResult(job.id, self.plain.replace(settlement, encoded[0]))]

        [added] = stored([job], self.codec, store)
        return added.is_new

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Add the jobs of a schedule, with their arguments in the row.

        They are not put into an object store, because a worker fires in the thread that renews
        leases, and that must not wait for a bucket. A store may also answer that another worker has
        fired when it has carried out the same call twice, because the first answer was lost;
        objects could not be removed after such an answer.
        """
        return self.plain.fire(name, expected, next_at, encoded_in_rows(jobs, self.codec))

    def find(self, job_id: str) -> Job | None:
        """One job."""
        job = self.plain.find(job_id)
        return None if job is None else decoded_job(job, self.codec)

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Jobs that match."""
        return (decoded_job(job, self.codec) for job in self.plain.search(search, limit))


class ResultsTooLargeError(Exception):
    """The error for results in an object store that are too large for the caller. None of them was
    fetched.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes of results")
        self.size = size


class PayloadCodecFlows:
    """The flows of such a store.

    The values of signals are stored plain, because they are compared. ``most``: how many bytes of
    results one call fetches from an object store. ``known``: results, as the store has them, that
    need not be read.
    """

    def __init__(
        self,
        flows: Any,
        codec: PayloadCodec,
        most: int | None = None,
        known: Mapping[str, bytes] | None = None,
    ) -> None:
        self._flows = flows
        self._codec = codec
        self._most = most
        self._known = known

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._flows, name)
        if name == "add_in":
            return lambda connection, flow, steps: stored(
                steps, self._codec, lambda encoded: found(connection, flow, encoded)
            )
        return found

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps."""
        return stored(steps, self._codec, lambda encoded: self._flows.add(flow, encoded))

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned. Raises UnreadableJobError, because a step cannot run without them."""
        found = self._read(ids)
        if self._most is not None:
            # Compressed, and counted without its header, an object has no more bytes than its
            # content: whatever is refused here is too large.
            names = filter(None, map(object_of, found.values()))
            size = sum(max(0, name.size - MAX_HEADER) for name in names)
            if size > self._most:
                raise ResultsTooLargeError(size)
        return {each: result and self._decoded(each, result) for each, result in found.items()}

    def _read(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """The known results, and the rest from the store."""
        known = self._known
        if known:
            found: dict[str, bytes | None] = {}
            for each in ids:  # Read once: another thread may drop results from ``known``.
                result = known.get(each)
                if result is not None:
                    found[each] = result
            rest = [each for each in ids if each not in found]
            return found | self._flows.results(rest) if rest else found
        read: Mapping[str, bytes | None] = self._flows.results(ids)
        return read

    def _decoded(self, job_id: str, result: bytes) -> bytes:
        try:
            return self._codec.decode_result(result)
        except UnreadableJobError as error:
            raise type(error)(
                f"the result of the job {job_id} cannot be had: {error.message}",
                remedy=error.remedy,
                details={**error.details, "job_id": job_id},
            ) from error


def results_reader(
    store: Any, most: int | None = None, known: Mapping[str, bytes] | None = None
) -> Callable[[Sequence[str]], Mapping[str, bytes | None]] | None:
    """The function that reads plain results of steps from a store; None for a store without flows.

    It raises ResultsTooLargeError when more than ``most`` bytes would have to be fetched from an
    object store, and does not read results that are ``known``. A worker without a codec still meets
    what others have encoded: it reads what is compressed, and raises PayloadKeyError for what is
    encrypted.
    """
    flows = getattr(store, "flows", None)
    if flows is None:
        return None
    if isinstance(store, PayloadCodecStore):
        return PayloadCodecFlows(store.plain_flows, store.codec, most, known).results
    return PayloadCodecFlows(flows, PLAIN, most, known).results


def encoded_jobs(jobs: Iterable[NewJob], codec: PayloadCodec) -> list[NewJob]:
    """New jobs as the store keeps them. If one cannot be encoded, the objects of the others are
    removed.

    A job that extends another job keeps its arguments in the row. The row of the other job gets
    them, and an object that names a job which was never stored would look unused.
    """
    encoded: list[NewJob] = []
    try:
        for job in jobs:
            owner = "" if job.on_duplicate is OnDuplicate.EXTEND else job.id
            args, kwargs = codec.encode_arguments(job.args, job.kwargs, owner)
            encoded.append(job if args is job.args else _replace(job, args=args, kwargs=kwargs))
    except BaseException:
        remove_objects(encoded, codec)
        raise
    return encoded


def encoded_in_rows(jobs: Iterable[NewJob], codec: PayloadCodec) -> list[NewJob]:
    """New jobs as the store keeps them, without any object."""
    encoded = [(job, codec.encode_arguments(job.args, job.kwargs)) for job in jobs]
    return [_replace(job, args=args, kwargs=kwargs) for job, (args, kwargs) in encoded]


def stored(
    jobs: Iterable[NewJob],
    codec: PayloadCodec,
    store: Callable[[list[NewJob]], list[EnqueueResult]],
) -> list[EnqueueResult]:
    """Store jobs encoded, each after its object. Objects whose row was not stored are removed."""
    if codec.objects is None:
        return store(encoded_jobs(jobs, codec))
    began_at = time.time()
    encoded = encoded_jobs(jobs, codec)
    failpoint("jobs.object.stored")
    try:
        added = store(encoded)
    except DuplicateJobError:
        # Any other error may have come after the commit; the sweep finds out.
        remove_objects(encoded, codec)
        raise
    failpoint("jobs.object.named")
    pairs = zip(encoded, added, strict=True)
    remove_objects([job for job, result in pairs if not result.is_new], codec)
    if not 0 <= time.time() - began_at < LONG:
        _check_objects(encoded, codec)
    return added


def _check_objects(jobs: Iterable[NewJob], codec: PayloadCodec) -> None:
    """Log jobs that were stored so long after their objects that the objects are gone."""
    named = [(job.id, object_of(job.args)) for job in jobs]
    objects = codec.objects
    gone = [id_ for id_, name in named if name and objects and not objects.is_there(name)]
    if gone:
        raise StoreError(
            f"this process was suspended while it stored {len(gone)} job(s), and their arguments"
            f" are gone: {', '.join(gone[:10])}",
            remedy="enqueue them again, and cancel these: no worker can run them",
            details={"jobs": gone},
        )


def remove_objects(jobs: Iterable[NewJob], codec: PayloadCodec) -> None:
    """Remove the objects of jobs that were not stored. Objects that cannot be removed are left to
    the sweep.
    """
    for job in jobs:
        name = object_of(job.args)
        if name is not None and codec.objects is not None:
            with suppress(StoreError, ConfigurationError):
                codec.objects.remove(name.digest)


def decoded_job(job: Job, codec: PayloadCodec) -> Job:
    """A job with plain payloads, as far as the codec can decode them. Objects are not fetched."""
    if job.args.startswith(ENCODED_ARGS) and not names_object(job.args):
        try:
            args, kwargs = codec.decode_arguments(job.args, job.kwargs)
        except UnreadableJobError:
            pass
        else:
            job = _replace(job, args=args, kwargs=kwargs)
    result = job.result
    if result is not None and result.startswith(ENCODED_RESULT) and not names_object(result):
        with suppress(UnreadableJobError):
            job = _replace(job, result=codec.decode_result(result))
    return job


Lost = Callable[[Job, ErgonError], None]
"""Called with a job and the reason why one of its payloads is lost; may raise."""


def log_lost(job: Job, error: ErgonError) -> None:
    """Log the loss. The job is copied without the payload."""
    logger.warning("job %s is copied without a payload: %s", job.id, error.message)


def inlined_job(job: Job, codec: PayloadCodec, lost: Lost = log_lost) -> Job:
    """The job with its payloads in the row, still encoded, for a copy in another place.

    Raises PayloadObjectError when the object store cannot be reached or is not in the settings. A
    payload that is missing or damaged is left as it is, unless ``lost`` raises.
    """
    if not (names_object(job.args) or (job.result is not None and names_object(job.result))):
        return job
    with _left_if_lost(job, lost):
        args, kwargs = codec.inlined_arguments(job.args, job.kwargs)
        job = _replace(job, args=args, kwargs=kwargs)
    result = job.result
    with _left_if_lost(job, lost):
        result = result and codec.inlined_result(result)
    return _replace(job, result=result)


@contextmanager
def _left_if_lost(job: Job, lost: Lost) -> Iterator[None]:
    try:
        yield
    except PayloadObjectError as error:
        if not error.details.get("is_missing"):
            raise
        lost(job, error)
    except UnreadableJobError as error:
        lost(job, error)


def bounded(jobs: Iterable[Job], size: int) -> Iterator[list[Job]]:
    """The jobs in lists that each have about so many bytes in an object store."""
    some: list[Job] = []
    total = 0
    for job in jobs:
        names = (object_of(job.args), object_of(job.result))
        more = sum(name.size for name in names if name is not None)
        if some and total + more > size:
            yield some
            some, total = [], 0
        some.append(job)
        total += more
    if some:
        yield some


def loaded_job(job: Job, codec: PayloadCodec) -> tuple[Job, dict[str, str]]:
    """The job with its payloads from the object store, and why a payload could not be read."""
    problems: dict[str, str] = {}
    if names_object(job.args):
        try:
            args, kwargs = codec.decode_arguments(job.args, job.kwargs)
        except UnreadableJobError as error:
            problems["args"] = error.message
        else:
            job = _replace(job, args=args, kwargs=kwargs)
    if job.result is not None and names_object(job.result):
        try:
            job = _replace(job, result=codec.decode_result(job.result))
        except UnreadableJobError as error:
            problems["result"] = error.message
    return job, problems
