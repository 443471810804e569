"""The durable line of facts that wait for their node, in the producer's own SQLite file."""
