"""Broken devices get no trials.

Promises: a slot runs no attempt while the operator's health check fails there. A device gets no attempt if attempts
fail there within seconds and others of the same experiment do well elsewhere. It is used again after a successful
probe. Trials that fail everywhere close no device.

Terms: a *health check* is the operator's command. It runs before a slot's first attempt, after a failed attempt, and
when the last check is old. A *quick failure* is an attempt that fails within seconds and without a report.

Other places: `workers/gpu.py`,
`docs/workers.md`, `tests/services/health`.
"""
