"""The documentation's site, built once for all processes of a run of tests."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from pages import ROOT

__all__ = ["built_site"]


def built_site(base: Path) -> Path:
    """Return the site's folder, built with every warning an error, and with no way to another host.

    Args:
        base: the folder in which this process of the run keeps temporary files.
    """
    # The processes of a run have folders beside each other.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site, draft = shared / "site", shared / "site.new"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not site.exists():
            done = subprocess.run(
                [sys.executable, "-W", "error", "-m", "mkdocs", "build", "--strict", "--site-dir", draft],
                cwd=ROOT,
                env={**os.environ, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            draft.rename(site)
    return site
