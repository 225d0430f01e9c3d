"""A chaos campaign of any length: ``python -m tests.chaos --runs 300 --seed 1 --at-once 2 --out figures.json``.

Each run is a process of its own, from a seed. A run that breaks a promise keeps its folder, and its seed is printed.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

from campaign import REQUESTS, run_one  # noqa: E402 - found only now
from faults import FAULTS  # noqa: E402
from watchdog import RUN_MARK  # noqa: E402

#: A run has a deadline of its own; this is for one that does not even come to that.
STUCK_S: Final = 600.0


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others have the seeds behind it")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--times", choices=["mixed", "own", "short"], default="mixed", help="own: leases of 15 s")
    parser.add_argument("--out", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--folder", type=Path, help="where the runs write; by default a temporary folder")
    parser.add_argument("--kinds", help=f"only these faults, one after the other: {', '.join(FAULTS)}")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="how many requests a run has at most")
    parser.add_argument(
        "--gangs", choices=["some", "all", "none"], default="some", help="where trials have several seats"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    kinds = [kind.strip() for kind in given.kinds.split(",")] if given.kinds else None
    if unknown := set(kinds or ()) - FAULTS.keys():
        parser.error(f"no such faults: {', '.join(sorted(unknown))}")
    if given.one:
        # One run in ten keeps mqtune's own times, with which a lost lease alone takes 15 s.
        own_times = given.times == "own" or (given.times == "mixed" and given.seed % 10 == 0)
        how = {"own_times": own_times, "kinds": kinds, "requests": given.requests, "which": given.gangs}
        outcome = run_one(given.seed, given.folder, **how)
        print(json.dumps(vars(outcome)))
        return 1 if outcome.violations else 0
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="mqtune-chaos-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--times", given.times, "--requests", str(given.requests), "--gangs", given.gangs]
    options += ["--kinds", given.kinds] if kinds else []
    # Once: a run's processes, ten and more, write no bytecode, and each would compile all that it imports.
    for compiled in (ROOT / "mqtune", HERE):
        compileall.compile_dir(compiled, quiet=1)
    outcomes = _campaign(range(given.seed, given.seed + given.runs), given.at_once, folder, options)
    figures = _figures(outcomes)
    print(json.dumps(figures, indent=1))
    if given.out:
        given.out.write_text(json.dumps({"figures": figures, "runs": outcomes}, indent=1))
    return 1 if figures["violations"] else 0


def _campaign(seeds: range, at_once: int, folder: Path, options: list[str]) -> list[dict[str, Any]]:
    mark = secrets.token_hex(8)
    # A campaign that is killed can't clean up; this does it then.
    watchdog = subprocess.Popen(
        [sys.executable, str(HERE.parent / "watchdog.py"), mark, str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    os.environ[RUN_MARK] = mark
    outcomes = []
    try:
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(_run, seed, folder / f"run-{seed}", options) for seed in seeds]
            for done, future in enumerate(as_completed(futures), 1):
                outcomes.append(outcome := future.result())
                _show(done, len(seeds), outcome)
    finally:
        watchdog.communicate()
    return sorted(outcomes, key=lambda outcome: int(outcome["seed"]))


def _run(seed: int, folder: Path, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.chaos", "--one", "--seed", str(seed), "--folder", str(folder)]
    began = time.monotonic()
    try:
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, timeout=STUCK_S)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        said = getattr(error, "stderr", None) or locals().get("done", error)
        took_s = round(time.monotonic() - began, 2)
        violations = [["run", f"the run itself broke: {str(said)[-3000:]}"]]
        return {"seed": seed, "folder": str(folder), "faults": [], "violations": violations, "took_s": took_s}


def _show(done: int, of: int, outcome: dict[str, Any]) -> None:
    violations = outcome["violations"]
    print(f"{done}/{of} seed {outcome['seed']}: {len(violations)} violations in {outcome['took_s']:.0f} s", flush=True)
    if not violations:
        return
    for at_s, kind, what in outcome["faults"]:
        print(f"    {at_s:6.2f} s  {kind}: {what}")
    for promise, what in violations:
        print(f"  BROKEN {promise}: {what}")
    print(f"  again: python -m tests.chaos --runs 1 --seed {outcome['seed']}; kept in {outcome['folder']}", flush=True)


def _figures(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    faults = Counter(kind for outcome in outcomes for _, kind, _ in outcome["faults"])
    broken = [outcome for outcome in outcomes if outcome["violations"]]
    took = sorted(outcome["took_s"] for outcome in outcomes)
    return {
        "runs": len(outcomes),
        "runs with mqtune's own times": sum(outcome.get("own_times", False) for outcome in outcomes),
        "faults": dict(sorted(faults.items())),
        "faults in all": sum(faults.values()),
        "violations": sum(len(outcome["violations"]) for outcome in outcomes),
        "violations by promise": dict(Counter(promise for each in broken for promise, _ in each["violations"])),
        "seeds with violations": [outcome["seed"] for outcome in broken],
        **sum((Counter(outcome.get("counts", {})) for outcome in outcomes), Counter()),
        "took (s)": {"median": median(took), "longest": took[-1]} if took else {},
    }


if __name__ == "__main__":
    sys.exit(main())
