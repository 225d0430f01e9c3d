"""A trial's process: its start, its messages, and its checkpoints."""
