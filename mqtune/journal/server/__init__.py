"""A Redis server: its connections, scripts, clock, identity and memory."""
