"""Programs: the script that a user of each system would write, and a trial for Syne Tune."""
