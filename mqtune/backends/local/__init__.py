"""A worker and a Redis of the machine's own."""
