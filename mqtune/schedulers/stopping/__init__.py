"""Stop rules: when a trial, or the whole experiment, has done enough."""
