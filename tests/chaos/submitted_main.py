"""A driver script that is submitted: it leaves its process id, its output and its exit code where the run finds them."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path


def main(here: str, plan: str, told: str, results: str, logs: str) -> int:
    """Be the next driver of the experiment."""
    sys.path.insert(0, here)
    import driver_main

    for number in itertools.count(1):
        path = Path(told, f"submitted-{number:03d}")
        try:
            with path.with_suffix(".pid").open("x") as file:
                file.write(f"{os.getpid()}\n")
            break
        except FileExistsError:
            continue
    log = os.open(Path(logs, f"{path.parent.parent.name}-{path.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = driver_main.main(Path(plan), path, Path(results))
    path.with_suffix(".exit").write_text(str(code))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
