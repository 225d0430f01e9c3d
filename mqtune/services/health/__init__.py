"""Devices on which trials would fail are kept from them.

Promises: a slot takes no attempt while the operator's health check fails there. A device takes none on which attempts
fail at once while attempts of the same experiment do well elsewhere, until a probe does well. Trials that fail
everywhere close no device.

Terms: a *health check* is the operator's command. It runs before a slot's first attempt, after one that has failed, and
where the last check is old. A *quick failure* is an attempt that fails within seconds and without a report.
"""
