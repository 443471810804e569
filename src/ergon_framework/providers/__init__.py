"""Calls to somebody else's service: quota, circuit breaker, retry, health, dead letters."""
