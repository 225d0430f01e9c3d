"""Deletes or archives experiments, and collects remains of deleted ones.

Promises: nothing is deleted while a driver has the experiment, or while its submitted script waits or runs. Checkpoints
that an experiment on another server may have stay. An archived experiment is complete in its folder before its server
deletes it, and its next driver restores it. An interrupted deletion can be repeated.

It asks ``submissions`` about submitted scripts.

Terms: *garbage* belongs to no experiment. *Orphans* are keys and messages of experiments that are no longer on the
server. The *remains* of an experiment are its keys and checkpoints. A *tenant* of a store is an experiment, with its
server, that has checkpoints there. A *mark* in the store names a tenant.

Other places: `mqtune/cli/delete.py`, `mqtune/cli/archive.py`, `mqtune/cli/gc.py`, `mqtune/cli/label.py`,
`deploy/kubernetes/cleanup.yaml`, `docs/clean-up.md`, `tests/services/upkeep`.
"""
