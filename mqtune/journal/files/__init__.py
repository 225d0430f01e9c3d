"""The files of a journal: a driver's copy, and the chapters in a store."""
