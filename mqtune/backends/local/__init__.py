"""A worker and a Redis server on this machine."""
