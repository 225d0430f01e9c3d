"""The worker: claims attempts, runs each in a process of its own, and sends what they report to the journal."""
