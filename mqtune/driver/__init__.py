"""The tuning loop: what is folded, decided, carried out and kept."""
