"""Running one part or all of them: processes, signals, liveness, outcomes."""
