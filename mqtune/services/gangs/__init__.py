"""A trial may run on several slots, also of several machines, at the same time.

Promises: all seats of an attempt begin together, or none does. A worker waits for the other seats for a bounded time,
and then gives its seat back. Each process finds the others by the variables of torchrun.

Terms: a *gang* is an attempt with several seats. A *seat* is a task of it, with a slot and a process of its own. Seat 0
reports, saves and may ask. Its *address* is a host and a free port there, by which the others reach it.

Other places: `mqtune/core/tasks.py`, `mqtune/cli/why.py`, `docs/how-to/several-machines.md`, `tests/services/gangs`.
"""
