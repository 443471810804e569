"""Queues of Amazon SQS as a source and a target of transactions.

Where to look first: ``connector`` is what tasks see. ``queue`` makes the requests, ten messages in
each. ``held`` keeps what is in hand invisible to others. ``wire`` says how a message fits into what
SQS takes.
"""

from __future__ import annotations

from ergon_framework.connector.sqs.connector import SqsConnector, SqsDelivery

__all__ = ["SqsConnector", "SqsDelivery"]
