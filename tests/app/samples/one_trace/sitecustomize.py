"""Sets up an SDK in every process of the test; what it recorded is handed over at the end.

It is imported at the start of each interpreter whose path names this folder. Without a folder in
``SPANS`` there is no SDK, and the trail is all there is.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path

if os.environ.get("SPANS"):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    @atexit.register
    def hand_over() -> None:
        """One line for each span."""
        lines = [
            json.dumps(
                {
                    "trace_id": f"{span.context.trace_id:032x}",
                    "span_id": f"{span.context.span_id:016x}",
                    "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
                    "name": span.name,
                    "attributes": dict(span.attributes or {}),
                },
                default=str,
            )
            for span in exporter.get_finished_spans()
        ]
        file = Path(os.environ["SPANS"], f"{os.getpid()}.jsonl")
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
