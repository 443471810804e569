"""Job stores: one module per engine, all held to one behaviour suite."""
