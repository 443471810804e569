"""What ``ergon serve`` answers over HTTP: probes, metrics, and how every part stands."""
