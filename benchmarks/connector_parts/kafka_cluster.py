"""A program that is a Kafka cluster: librdkafka's own. It ends with its input.

It prints its address, and for each line with a number the name of a topic with so many partitions.
"""

from __future__ import annotations

import sys

from tests.servers.kafka import KafkaCluster


def main() -> None:
    """Serve until nobody asks any more."""
    cluster = KafkaCluster()
    print(cluster.server, flush=True)
    for line in sys.stdin:
        print(cluster.new_topic(int(line)), flush=True)


if __name__ == "__main__":
    main()
