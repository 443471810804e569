"""Puts the results of steps into the arguments of the steps that use them, when a worker has
claimed these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ergon_framework.core.executor_protocol import MAX_LINE
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobEvent, Released
from ergon_framework.errors import StoreError, UnreadableJobError
from ergon_framework.jobs.claims import Claim, unreadable_outcome
from ergon_framework.jobs.payload_codec_store import ResultsTooLargeError
from ergon_framework.ports.flow import from_runs, step_id, used_ids
from ergon_framework.ports.jobstore import ClaimedJob

Results = Mapping[str, bytes | None]
ReadResults = Callable[[Sequence[str]], Results]

MAX_ARGUMENTS = MAX_LINE - 64 * 1024
"""Bytes of the arguments that one step is sent, results of other steps included. An executor reads
no longer line, and the line holds more than the arguments.
"""
MAX_TOGETHER = 16
"""How many results a step may use for these to be read together with those of other steps. With
more, the results of several steps would be in memory at once.
"""
_encode = msgspec.json.Encoder().encode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = b"null"


def value_of(source: Any, flow_id: str, results: Results) -> bytes:
    """The JSON of a result; null for a step without a result."""
    if type(source) is int:  # of nearly all steps of chains
        return results.get(step_id(flow_id, source)) or _NULL
    if isinstance(source, list):
        parts = [value_of(each, flow_id, results) for each in from_runs(source)]
        return b"[" + b",".join(parts) + b"]"
    (job_id,) = used_ids(source, flow_id)
    return results.get(job_id) or _NULL


def with_results(job: ClaimedJob, results: Results) -> ClaimedJob:
    """The job with the results in the places that are kept for them in its arguments."""
    args: list[msgspec.Raw] | None = None  # each is read only where a result goes into it
    kwargs: dict[str, msgspec.Raw] | None = None
    for place, source in job.uses:
        value = msgspec.Raw(value_of(source, job.flow_id or "", results))
        if isinstance(place, int):
            args = _items(job.args) if args is None else args
            args[place] = value
        else:
            kwargs = _fields(job.kwargs) if kwargs is None else kwargs
            kwargs[place] = value
    return msgspec.structs.replace(
        job,
        args=job.args if args is None else _encode(args),
        kwargs=job.kwargs if kwargs is None else _encode(kwargs),
    )


def hand_over(claims: Sequence[Claim], read: ReadResults | None) -> None:
    """Put results into the arguments of claimed steps. A result that cannot be read ends the claim.

    When the store cannot be reached, the jobs are given back without a charge.
    """
    wanted = [
        (claim, _result_ids(claim.job))
        for claim in claims
        if claim.job.uses is not None and claim.outcome is None
    ]
    known = _read_together([ids for _, ids in wanted if len(ids) <= MAX_TOGETHER], read)
    for claim, ids in wanted:
        job = claim.job
        try:
            results = known if known and len(ids) <= MAX_TOGETHER else _read(ids, read)
        except ResultsTooLargeError as error:
            claim.outcome = _too_large(error.size)
            continue
        except UnreadableJobError as error:
            claim.outcome = unreadable_outcome(error)
            continue
        except StoreError:
            claim.outcome = Released()
            continue
        size = sum([len(results.get(each) or b"") for each in ids])
        if size <= MAX_ARGUMENTS:
            claim.job = with_results(job, results)
            # A result may be used more than once.
            size = len(claim.job.args) + len(claim.job.kwargs)
        if size > MAX_ARGUMENTS:
            claim.outcome = _too_large(size)


def _result_ids(job: ClaimedJob) -> list[str]:
    """The ids of the jobs whose results a step uses."""
    flow_id = job.flow_id or ""
    ids: list[str] = []
    for _, source in job.uses or ():
        if type(source) is int:
            ids.append(step_id(flow_id, source))
        else:
            ids += used_ids(source, flow_id)
    return ids


def _read_together(asked: Sequence[Sequence[str]], read: ReadResults | None) -> Results:
    """Read the results for several steps in one query; nothing if one of them cannot be read.

    Steps of chains use one result each, and a query costs more than the rest of such a step.
    """
    if len(asked) < 2:
        return {}
    try:
        return _read([each for ids in asked for each in ids], read)
    except (
        StoreError,
        ResultsTooLargeError,
    ):  # Then each step is read by itself and has an outcome of its own.
        return {}


def _read(ids: Sequence[str], read: ReadResults | None) -> Results:
    return {} if read is None else read(ids)


def _too_large(size: int) -> JobEvent:
    text = (
        f"its arguments take {size:,} bytes with the results of the steps before it, and"
        f" {MAX_ARGUMENTS:,} can be sent; let these steps return where their data is"
    )
    return Failed(Failure(Kind.REJECTED, "results_too_large", text), is_written=False)
