"""Runs one measurement in this process and writes its figures as JSON."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.measurement import Context
from benchmarks.systems import SYSTEMS
from benchmarks.work import WORKLOADS

__all__ = ["main"]

#: Distributions whose packages have another name.
DISTRIBUTIONS: Final = {"sklearn": "scikit-learn"}


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in packages:
        distribution = DISTRIBUTIONS.get(package, package.replace("_", "-"))
        try:
            versions[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            # Run from a source tree that isn't installed.
            versions[distribution] = str(getattr(sys.modules.get(package), "__version__", "source tree"))
    return versions


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    system = SYSTEMS[request["system"]]
    packages = (*system.packages, *WORKLOADS[request["workload"]].packages)
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        return {"status": "skipped", "reason": f"{', '.join(missing)} not installed in {sys.executable}"}
    variants = system.variants[request["workload"]]
    variant = next(variant for variant in variants if variant.name == request["variant"])
    context = Context(folder=Path(request["folder"]), sizes=request["sizes"], run=request["run"])
    return {"status": "ok", "figures": variant.measure(context), "versions": _versions(packages)}


def main() -> None:
    """Read the request named by the only argument and write the answer next to it."""
    request_path = Path(sys.argv[1])
    answer = _measure(json.loads(request_path.read_text()))
    request_path.with_name("answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
