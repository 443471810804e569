"""Reading a log under a durable name: in order, and confirmed when it is done."""
