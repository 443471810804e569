"""What ``ergon serve`` answers over HTTP: probes and the provider health summary."""
