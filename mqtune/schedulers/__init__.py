"""Schedulers and stop rules: how long to keep trying a config, and when a trial or an experiment has done enough."""
