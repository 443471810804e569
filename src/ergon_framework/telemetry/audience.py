"""Who hears of the spans of a tracer: its processors, without those that do nothing with them.

The processors that export spans ignore their start and what comes just before their end. Calling
them five times per transaction to be ignored is measurable, so they are told apart by the very
functions the SDK gave them; whoever has another one is called as the SDK would.
"""

# ruff: noqa: SLF001 - the list of processors, and one of their methods, have private names only

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, SynchronousMultiSpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

_KNOWN = (SpanProcessor, SimpleSpanProcessor, BatchSpanProcessor)
_SILENT = {
    method: [getattr(known, method, None) for known in _KNOWN]
    for method in ("on_start", "_on_ending")
}

# The exporting processor asks whether a span is sampled, which all of ours are, and passes it on.
# That this is all it does is read off the names its function uses.
_PASSES_ON = {"context", "trace_flags", "sampled", "_batch_processor", "emit"}
_DOES_NO_MORE = set(BatchSpanProcessor.on_end.__code__.co_names) == _PASSES_ON


class Audience:
    """The listening methods of a tracer's processors."""

    __slots__ = ("ended", "ending", "group", "members", "starting")

    def __init__(self, processor: SpanProcessor) -> None:
        if type(processor) is not SynchronousMultiSpanProcessor:
            alone = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
            alone.add_span_processor(processor)
            processor = alone
        self.group = processor
        self.look()

    def look(self) -> None:
        """Find out who listens. Again, whenever ``group`` has got other ``members``."""
        members = self.group._span_processors
        self.starting = _listening(members, "on_start")
        self.ending = _listening(members, "_on_ending")
        self.ended = tuple(_on_end(member) for member in members)
        self.members = members


def _listening(members: tuple[SpanProcessor, ...], method: str) -> tuple[Callable[..., Any], ...]:
    if not hasattr(SpanProcessor, method):
        return ()  # older releases of the SDK do not tell of spans that are ending
    return tuple(getattr(member, method) for member in members if not _is_silent(member, method))


def _on_end(member: SpanProcessor) -> Callable[[ReadableSpan], Any]:
    if type(member) is BatchSpanProcessor and "on_end" not in vars(member) and _DOES_NO_MORE:
        return member._batch_processor.emit
    return member.on_end


def _is_silent(member: SpanProcessor, method: str) -> bool:
    return method not in vars(member) and getattr(type(member), method) in _SILENT[method]
