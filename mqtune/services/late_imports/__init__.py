"""Imports the late imports of trials once, before trials are forked.

Promises: the first trials of a trainable show its late imports, and later trials find these imported. A module is
imported early only in the environment of its import in a trial. A package that makes forks unsafe is left to the
trials. This knowledge survives a worker's restart.

Terms: a *late import* happens in a trial, after its fork. A *batch* has modules, and the trial's environment changes
before their import.

Other places: `mqtune/trainable/process/late_imports.py`, `mqtune/worker/programs/preloads.py`,
`tests/services/late_imports`.
"""
