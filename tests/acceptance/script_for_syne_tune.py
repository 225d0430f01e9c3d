"""What Syne Tune's users write: arguments, lines on stdout, and a folder for checkpoints."""

import argparse
import json
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("--st_checkpoint_dir", type=Path)
arguments, _ = parser.parse_known_args()

file = arguments.st_checkpoint_dir / "state.json"
begin = json.loads(file.read_text())["epoch"] if file.is_file() else 0
for epoch in range(begin + 1, arguments.epochs + 1):
    time.sleep(0.05)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"epoch": epoch}))
    metrics = {"epoch": epoch, "loss": arguments.x / epoch, "st_worker_timestamp": time.time()}
    print(f"[tune-metric]: {json.dumps(metrics)}", flush=True)
