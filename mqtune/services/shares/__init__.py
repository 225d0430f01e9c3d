"""Divides the slots of a fleet among experiments, by priority and share.

Promises: a single experiment may use all slots. A new one gets its share within seconds, as far as others can release
slots: waiting attempts are withdrawn, and preemptible trials are paused with a checkpoint. No experiment exceeds its
quotas. An account that may not read the demands of others uses the free slots.

Terms: a *demand* is the number of slots that an experiment has, and the number that it wants. Its *share* is the number
of slots that it may have. The *dividing driver* computes the shares of all experiments. A *pool* is all slots of the
fleet. A *crew* is a group of equal workers. A *quota* limits the running attempts of all experiments with a matching
name. A *cap* is the most that an experiment may request.

Other places: `mqtune/driver/setup/options.py` (`priority`, `share`), `mqtune/cli/fleet.py`, `mqtune/cli/quota.py`
(`mqtune fleet quota`), `mqtune/cli/why.py`, `mqtune/cli/ui/views.py`, `docs/how-to/shared-fleet.md`,
`tests/services/shares`.
"""
