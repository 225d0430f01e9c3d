"""A driver's writes: its actions, its attempts in the queues, and its lock."""
