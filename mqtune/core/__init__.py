"""The vocabulary that every part shares: trials, events and their encoding, errors, keys."""
