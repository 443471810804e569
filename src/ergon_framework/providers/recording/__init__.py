"""Rows on their way to the store: queued, counted, written; on disk while the store is away."""
