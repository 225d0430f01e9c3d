"""Programs: what users of each system would run, a trial for systems that run scripts, and the processes below torchrun."""
