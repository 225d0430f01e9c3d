"""A trial's process: how it is made, what it says and hears, and how its checkpoints are saved."""
