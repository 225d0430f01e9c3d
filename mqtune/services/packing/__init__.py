"""GPUs whose memory trials share, and memory that ended trials leave behind.

Promises: where GPUs are shared by memory, attempts on one GPU never ask for more together than it has. They start in
their order, so a small attempt never delays a large one for ever. An attempt that waits for memory goes back to its
queue once another worker has the memory. No trial starts on a device while others hold much of its memory. A slot is
free when its devices' memory is back; a device whose memory does not come back takes no trial until it does.

Terms: the *room* of a GPU is its memory without the shares of its attempts. An attempt without a known share gets the
whole GPU. The *baseline* of a device is its memory in use before its first trial.

Other places: `mqtune/driver/setup/local_slots.py`, `docs/workers.md`,
`tests/services/packing`.
"""
