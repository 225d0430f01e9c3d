"""Files to run as programs: Syne Tune's trial and users' scripts."""
