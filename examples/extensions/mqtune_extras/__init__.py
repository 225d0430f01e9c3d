"""Extend mqtune by a package: one small example of each kind, tested by the contract suites."""
