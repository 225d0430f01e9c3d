"""A package's names are found when they are used, and what is looked for in vain costs nothing."""

from __future__ import annotations

import subprocess
import sys


def test_what_python_itself_looks_for_in_vain_imports_nothing() -> None:
    source = """
import sys
import mqtune
before = set(sys.modules)
assert not hasattr(mqtune, "__warningregistry__")
assert not hasattr(mqtune.schedulers, "__wrapped__")
print(sorted(name for name in set(sys.modules) - before if name.startswith("mqtune.core")))
"""

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
