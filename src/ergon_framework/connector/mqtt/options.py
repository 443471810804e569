"""Refuses options that MQTT has no room or no meaning for, before anything is connected.

Otherwise each would look like a broker that cannot be reached, and be retried for ever.
"""

from __future__ import annotations

from ergon_framework.connector.mqtt.publication import MAX_TEXT
from ergon_framework.errors import ConfigurationError

MAX_16_BITS = 65_535
MAX_32_BITS = 4_294_967_295
"""What the fields of MQTT have room for."""


def check_names(
    *,
    topic: str,
    client_id: str | None,
    group: str | None,
    publish_to: str | None,
    dead_letter_topic: str,
) -> None:
    """Refuse names that are empty, as of a variable that is not set, and wildcards out of place."""
    given = {
        "topic": topic,
        "client_id": client_id,
        "group": group,
        "publish_to": publish_to,
        "dead_letter_topic": dead_letter_topic,
    }
    for name, value in given.items():
        if value is not None and (not value or "\0" in value or len(value.encode()) > MAX_TEXT):
            raise ConfigurationError(
                f"{name} is empty, has a NUL character or is longer than {MAX_TEXT} bytes",
                remedy=f"give {name} a name; if it comes from a variable, see that it is set",
            )
    levels = topic.split("/")
    if any({"+", "#"} & {*level} and len(level) > 1 for level in levels) or "#" in levels[:-1]:
        raise ConfigurationError(
            f"the topic {topic[:80]!r} has a wildcard out of place",
            remedy="+ is one whole level, and # (%23 in a URL) all that follow, at the end",
        )
    if group is not None and {"/", "+", "#"} & {*group}:
        raise ConfigurationError(
            f"group is {group[:80]!r}, and the name of a group has no /, + or #",
            remedy="write group=quality",
        )
    if {"+", "#"} & {*dead_letter_topic}:
        raise ConfigurationError(
            f"dead_letter_topic is {dead_letter_topic[:80]!r}, and nothing is published to a"
            " pattern",
            remedy="leave it out, or write dead_letter_topic=failed",
        )
