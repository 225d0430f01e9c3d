"""A driver restores an experiment that its server has lost.

The server may have lost all of it, its beginning, or its newest entries.

Promises: the driver's copy, and the events that it has written since, come back in one step and in their order. An
attempt that was under way is journaled as lost in that step, and its trial runs again. Nothing is written twice. A copy
of another experiment is left alone. Where another driver has continued from an earlier state, the copy is renamed.

Terms: to *restore* entries is to write them to the server again, from the copy. A *dict* is a checkpoint in Redis. It
is restored if the experiment's folder has it, and dropped otherwise.

Other places: `docs/faults.md`, `tests/services/recovery`.
"""
