"""A trainable that takes a moment to leave; workers import it from here."""

from __future__ import annotations

import time

import mqtune


def lingers(config):
    try:
        for epoch in range(3000):
            time.sleep(0.02)
            mqtune.report({"loss": config["x"] / (epoch + 1)})
    finally:
        time.sleep(0.5)
