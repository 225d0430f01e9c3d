"""Vocabulary shared by all parts: trials, events and their encoding, errors, keys."""
