"""Workers and whole fleets are watched with Prometheus.

Promises: figures are read when Prometheus asks, and cost nothing otherwise. No trial, report or lease waits for them. A
server that is away is a figure too.

Terms: a *figure* is a metric with its values of one moment, by the values of its labels. The *exporter of a worker*
serves what one worker is and does. The *exporter of a fleet* is ``mqtune exporter``: it reads all of a server's
queues, workers and experiments with a monitor's account. The slots of each experiment come from ``shares``.
"""
