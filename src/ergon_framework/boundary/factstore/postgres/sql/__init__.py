"""The statements of the PostgreSQL fact store; ``{zone}`` is the schema with the zone's tables."""
