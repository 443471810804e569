"""The composition root: settings, wiring, runner."""
