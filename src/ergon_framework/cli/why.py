"""``ergon why``: in plain words why a job waits, was retried, died or ran twice."""

from __future__ import annotations

from ergon_framework.cli.desk import JobId, StoreUrl, opened
from ergon_framework.cli.output import printable, show_one
from ergon_framework.cli.session import ConfigPath, JsonFlag


def why(
    job: JobId, config: ConfigPath = None, url: StoreUrl = None, as_json: JsonFlag = False
) -> None:
    """Say why a job is where it is, from its recorded history."""
    from ergon_framework.jobs.why import explain_job

    with opened(config, url, reads=True) as client:
        found = client.find(job)
        store = client.store
        queue = next((each for each in store.queues() if each.name == found.queue), None)
        sentences = explain_job(found, queue, store.workers(), store.now(), client.settings)
    if as_json:
        show_one({"id": found.id, "status": found.status.value, "why": sentences}, as_json=True)
        return
    print(printable(f"{found.id} is {found.status}."))
    for sentence in sentences:
        print(printable(sentence))
