"""Mixins that make a task a consumer, a producer, or both."""
