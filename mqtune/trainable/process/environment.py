"""The versions in a trial's environment: of Python, imported packages, and its own code."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from importlib.util import source_hash
from pathlib import Path
from typing import Final, TypedDict

from mqtune.core.version import __version__
from mqtune.trainable.frozen_code import fingerprint, frozen, read_source

#: The journal has the packages of each attempt. Frameworks import hundreds, but the program's own imports come first.
_MAX_PACKAGES: Final = 40
_DIST_INFO: Final = ".dist-info"


class Environment(TypedDict, total=False):
    """The versions in a trial's environment.

    Attributes:
        packages: version of each imported package.
        code: a hash of the user's code.
        differs: the user's files that have changed since the experiment began.
        start: why each trial has to execute a slow program itself, in words.
    """

    python: str
    platform: str
    mqtune: str
    packages: dict[str, str]
    code: str
    differs: list[str]
    start: str


def describe_environment(files: Collection[str]) -> Environment:
    """Return the versions of Python, the platform, mqtune, and the imported packages and code.

    A package has the version of the installed distribution of the same name, or else its ``__version__``. Packages with
    neither and modules of Python are left out.

    Args:
        files: paths of the user's own modules.
    """
    machine = os.uname()
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "platform": f"{machine.sysname}-{machine.release}-{machine.machine}",
        "mqtune": __version__,
        "packages": _package_versions(),
        "code": _hash_files(files),
    }


def _package_versions() -> dict[str, str]:
    installed: dict[str, str] | None = None
    packages: dict[str, str] = {}
    for name in dict.fromkeys(module.partition(".")[0] for module in sys.modules):
        if name in sys.stdlib_module_names or name.startswith("_") or name == "mqtune":
            continue
        module = sys.modules.get(name)
        if "site-packages" not in (getattr(module, "__file__", None) or ""):
            continue
        if installed is None:
            installed = _installed_versions()
        # An attribute access could import more.
        version = installed.get(_normal_name(name)) or vars(module).get("__version__")
        if isinstance(version, str):
            packages[name] = version
        if len(packages) == _MAX_PACKAGES:
            break
    return packages


def _installed_versions() -> dict[str, str]:
    """Return the version of each installed distribution by its name, by listing folders alone."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in names:
            if entry.endswith(_DIST_INFO):
                name, _, version = entry.removesuffix(_DIST_INFO).rpartition("-")
                versions.setdefault(_normal_name(name), version)
    return versions


def _normal_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _hash_files(files: Collection[str]) -> str:
    """Return a hash of files' contents, and of their paths within their common folder."""
    if not files:
        return ""
    # Their common folder may differ between machines.
    common = os.path.commonpath([os.path.dirname(path) for path in files])
    content = []
    for path in sorted(files):
        source = frozen().source(path)
        if source is None:
            source = read_source(Path(path))
        if source is not None:
            content.append(f"{os.path.relpath(path, common)}\0{fingerprint(source)}\0".encode(errors="surrogateescape"))
    return source_hash(b"".join(content)).hex()
