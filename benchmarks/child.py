"""Runs one measurement in this process and writes what came out as JSON; started by ``benchmarks.runner``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.measurement import Context, Skip, System, Variant
from benchmarks.systems import SYSTEMS
from benchmarks.work import WORKLOADS

__all__ = ["find_variant", "main"]

#: Of packages that are imported by another name than they are installed by.
DISTRIBUTIONS: Final = {"sklearn": "scikit-learn"}


def find_variant(system: System, workload: str, name: str) -> Variant:
    """Return the system's variant of that name."""
    return next(variant for variant in system.variants[workload] if variant.name == name)


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
    variant = find_variant(system, request["workload"], request["variant"])
    context = Context(folder=Path(request["folder"]), sizes=request["sizes"], root_pid=os.getppid(), run=request["run"])
    try:
        figures = variant.measure(context)
    except Skip as skip:
        return {"status": "skipped", "reason": str(skip)}
    return {"status": "ok", "figures": figures, "versions": _versions(packages)}


def main() -> None:
    """Read the request named by the only argument and write the answer next to it."""
    request_path = Path(sys.argv[1])
    answer = _measure(json.loads(request_path.read_text()))
    request_path.with_name("answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
