"""Measures mqtune beside Ray Tune, Syne Tune and Optuna on the same work; see README.md."""
