"""Trainables of three experiments that share workers: nothing is imported, so that changing between them costs little."""

from __future__ import annotations

import mqtune


def first(config):
    mqtune.report({"loss": config["x"]})


def second(config):
    mqtune.report({"loss": 2 * config["x"]})


def third(config):
    mqtune.report({"loss": 3 * config["x"]})
