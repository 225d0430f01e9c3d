"""A package of somebody else's brings one of each thing that can be brought, and passes the contract suites."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTENSIONS = ROOT / "examples" / "extensions"


def test_an_installed_package_brings_one_of_each_and_passes_the_contract_suites(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(EXTENSIONS)]
    built = subprocess.run(build, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    # What pip would do with a wheel of pure Python, its entry points included.
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "site")

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(tmp_path), f"--basetemp={tmp_path / 'tests'}"),
            str(EXTENSIONS / "tests"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 130
