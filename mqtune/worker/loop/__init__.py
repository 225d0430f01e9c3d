"""A worker's loop, its settings, its start and its shutdown."""
