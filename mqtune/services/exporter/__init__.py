"""Prometheus metrics of workers and whole fleets.

Promises: figures are read when Prometheus asks, and cost nothing otherwise. No trial, report or lease waits for them.
An unavailable server is a figure too.

Terms: a *figure* is a metric with its current values, by label values. The *exporter of a worker* serves the state of
one worker. The *exporter of a fleet* is ``mqtune fleet exporter``: it reads all queues, workers and experiments of a
server with a monitor's account. The slots of each experiment come from ``shares``.

Other places: `mqtune/cli/exporter.py` (`mqtune fleet exporter`), the extra `prometheus` in `pyproject.toml`,
`docker-compose.metrics.yml`, `deploy/monitoring`, `deploy/kubernetes/monitor.yaml`, `docs/how-to/monitoring.md`,
`tests/services/exporter`, `tests/integration/test_fleet_figures.py`.
"""
