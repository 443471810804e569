"""An admin application over ASGI, behind ``ergon serve``: probes, metrics, JSON lists, a console.

Promises: only forms of the console write to a store, for people who have signed in; without a token
only callers on this machine are answered; a store that hangs delays only the answers about itself.
Needs the extra ``api``.

Start with ``application`` (how it is made and served) and ``routes`` (what is put together).
``middleware`` is what every request passes first, ``responses`` how answers and errors look,
``tokens`` who may ask, ``sessions`` who has signed in. ``backends`` are the stores and zones of the
settings; ``backend_pool`` calls them off the event loop. The routes are in ``job_routes``,
``dead_letter_routes``, ``boundary_routes``, ``probes`` and ``metrics``; ``console`` has the pages.
``protocol`` limits connections below uvicorn. ``totals`` counts for ``/metrics``, and ``schemas``
are the documents as OpenAPI publishes them.
"""
