"""What a driver writes: events, attempts, and its lock."""
