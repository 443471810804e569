"""The console: pages over the same stores as ``/api/v1``, for a person with a browser.

Promises: every page works without a script, loads nothing from elsewhere, and exists as JSON under
the same address; lists exist as CSV as well. What many watchers ask for is asked of a store once.

Start with ``routes`` (which pages there are). ``overview`` and ``job_pages`` make documents from
what the backends tell, ``attention`` and ``timeline`` decide what they say, and ``answers`` shows a
document in the format that was asked for. ``sharing`` and ``rates`` keep what watchers share, and
``formatting`` writes numbers and times. Templates, the stylesheet and the script are files beside
them.
"""
