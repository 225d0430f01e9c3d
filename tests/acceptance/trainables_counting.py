"""A trainable whose reports can be checked one by one."""

from __future__ import annotations

import time

import mqtune


def counts(config):
    """Report 1, 2, 3 … up to ``steps``; go on from a checkpoint where there is one, and save one every 10 steps."""
    start = mqtune.get_checkpoint()
    done = 0 if start is None else start.data["step"]
    for step in range(done + 1, int(config["steps"]) + 1):
        time.sleep(config["step_s"])
        saves = config["saves"] and step % 10 == 0
        mqtune.report({"loss": 1 / step, "step": step}, checkpoint={"step": step} if saves else None)
