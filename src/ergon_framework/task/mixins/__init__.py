"""Mixins that make a task a consumer, a producer, or both.

- ``consumer``, ``producer``: the calls of users; ``policies``: every number that steers an engine
- ``plans``: policy, hooks and connector, checked and put into the plan of an engine
- ``utils``: the helpers that the specifications name
"""
