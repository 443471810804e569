"""Dead letters that would be work again, and come back without an end, are refused."""

from __future__ import annotations

import pytest

from ergon_framework.connector import from_url
from ergon_framework.connector.broker.dead_letters import is_taken_in
from ergon_framework.errors import ConfigurationError

NATS = "nats://h?stream=S&consumer=c"


@pytest.mark.parametrize(
    "url",
    [
        "amqp://h/orders?dead_letter_queue=orders",
        "redis://h/0?stream=orders&dead_letters=orders",
        "kafka://h/orders?dead_letter_topic=orders",
        "mqtt://h/plant/orders?client_id=x&dead_letter_topic=plant",
        "sqs://eu-west-1/orders?dead_letter_queue=orders",
        "postgresql://h/shop?table=orders&dead_letters=orders",
        f"{NATS}&filter_subject=orders.new&dead_letter_subject=orders.new",
        f"{NATS}&filter_subject=orders.*&dead_letter_subject=orders.dead",
    ],
)
def test_dead_letters_do_not_go_where_work_is_read_from(url: str) -> None:
    """For each connector that is told where they go; nothing is connected for it."""
    with pytest.raises(ConfigurationError, match=r"again|of its own|takes in") as caught:
        from_url(url)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "url",
    [
        "amqp://h/orders?dead_letter_queue=orders&dead_letter_exchange=failed",
        f"{NATS}&filter_subject=orders.*&dead_letter_subject=orders.dead.new",
        f"{NATS}&dead_letter_subject=failed",
    ],
)
def test_places_of_their_own_are_taken(url: str) -> None:
    """With an exchange, the name of the queue says nothing of where a letter ends up."""
    from_url(url).close()


@pytest.mark.parametrize(
    ("pattern", "subject", "answer"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.c.c", False),
    ],
)
def test_patterns_of_nats(pattern: str, subject: str, answer: bool) -> None:
    """One word for each asterisk, and at least one for what follows."""
    assert is_taken_in(pattern, subject) is answer
