"""What runs on a GPU machine: claims attempts, supervises their processes, sends their reports."""
