"""mqtune's version and origin. Drivers and workers need the same minor version."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

__version__: Final = "0.2.0"

#: Hint for versions that don't work together.
UPGRADE: Final = "upgrade the older one: docs/installation.md#upgrade-a-fleet"


def minor(version: str) -> str:
    """Return the minor version, such as 0.2 of 0.2.1."""
    return ".".join(version.split(".")[:2])


def meets(version: str) -> bool:
    """Whether a program of this version works with this one: the minor versions are equal."""
    return minor(version) == minor(__version__)


class InstallSource(NamedTuple):
    """Where the installed mqtune came from: a URL (empty for an index), and any local path."""

    url: str = ""
    path: str = ""
    is_editable: bool = False


def requirement(extra: str = "") -> str:
    """Return the requirement with which pip installs this mqtune: its URL, or else its version.

    If this mqtune came from a URL, a name alone could make pip run another project of that name from an index.
    """
    name, url = f"mqtune[{extra}]" if extra else "mqtune", source().url
    return f"{name} @ {url}" if url else f"{name}=={__version__}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this mqtune."""
    origin = source()
    return f"pip install -e '{origin.path}[{extra}]'" if origin.is_editable else f"pip install '{requirement(extra)}'"


def source() -> InstallSource:
    """Return the origin of the installed mqtune."""
    # Imported here, because few processes need them.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import unquote  # noqa: PLC0415

    try:
        described = json.loads(distribution("mqtune").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return InstallSource()
    url = str(described.get("url", ""))
    path = unquote(url.removeprefix("file://")) if url.startswith("file://") else ""
    if vcs := described.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return InstallSource(url, path, is_editable=bool(described.get("dir_info", {}).get("editable")))
