"""The programs that a worker runs: their experiments, importers and zygotes."""
