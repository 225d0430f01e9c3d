"""The path of an event: from the queue of read entries to the fold and the listeners."""
