"""A class's process also runs the slot's next trials: ``Process(reuse=True)``.

Promises: a process runs another trial only if the trial before it has ended well, between two steps, and has left no
process, no thread and little memory on a device. Each trial has its own config, output and folders. A fresh process
takes a trial that the old one refuses. The journal says why a process has run no other trial.

Terms: a *kept* process has ended a trial and waits for the next one.

Other places: `mqtune/driver/setup/options.py` (`Process(reuse=…)`), `mqtune/trainable/class_.py`, `docs/processes.md`,
`tests/services/reuse`.
"""
