"""What every part speaks of: trials, events and how they are encoded, errors, keys."""
