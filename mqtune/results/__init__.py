"""What an experiment found, and how it is shown."""
