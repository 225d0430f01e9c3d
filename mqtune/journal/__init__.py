"""The journal: every event of an experiment in one stream, and the leases and intents of its attempts."""
