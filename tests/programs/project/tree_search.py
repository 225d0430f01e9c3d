"""Tunes a program that only prints, by a template of its arguments and a pattern of its output."""

import mqtune

if __name__ == "__main__":
    script = mqtune.Script(["./tree.sh", "--{name}={value}"], metrics=r"cross-validated error: (?P<error>[\d.]+)")
    space = {"cp": mqtune.grid_search([0.01, 0.1]), "depth": mqtune.grid_search([2, 4])}
    mqtune.Tuner(script, space, metric="error", mode="min", name="tree-search").run()
