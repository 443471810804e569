"""HTTP between producers, consumers and nodes: a server, two clients, one codec."""
