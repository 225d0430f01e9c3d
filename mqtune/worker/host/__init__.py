"""The machine of a worker: its devices, processes, threads, folders and output files."""
