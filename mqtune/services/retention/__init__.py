"""Moves the oldest entries of a journal from its server into the experiment's store.

Promises: an entry leaves the server only after the store and the driver's copy have it, and the driver has read it.
Readers see the whole journal, in order, even while entries move.

Terms: a *chapter* is a file in the experiment's store with the oldest entries of its journal, which Redis no longer
has. To *trim* is to record a chapter and remove its entries from Redis.

Other places: `mqtune/journal/files/chapters.py`, `docs/scale.md`, `tests/services/retention`.
"""
