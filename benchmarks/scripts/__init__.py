"""Files that other programs run: Syne Tune's trial and users' scripts."""
