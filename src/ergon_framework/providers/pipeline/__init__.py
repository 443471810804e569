"""One guarded call of a provider, from its arguments to its result.

Start with ``guarded_call``: it does what ``core/provider_call.py`` decides, step by step.
``drivers`` runs it on a thread or on an event loop, and first tries ``fast_path``, for calls that
meet no trouble. ``options`` has what a provider was given and what its calls obey, ``runtime`` puts
a provider's parts together, ``lanes`` has what the calls of one tenant share, ``request`` what an
attempt is given. ``streaming`` makes calls whose result comes item by item.
"""
