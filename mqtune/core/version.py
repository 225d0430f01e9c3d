"""The version of mqtune, and where it was installed from; drivers and workers meet only within one minor version."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

__version__: Final = "0.2.0"

#: The way out where two versions don't meet.
UPGRADE: Final = "upgrade the older one: docs/how-to/upgrade.md"


def minor(version: str) -> str:
    """Return the minor version of a version, such as 0.2 of 0.2.1."""
    return ".".join(version.split(".")[:2])


def meets(version: str) -> bool:
    """Whether a program of this version works together with this one: both are of one minor version."""
    return minor(version) == minor(__version__)


class Source(NamedTuple):
    """Where mqtune was installed from: a URL, empty for an index, and its path if that is on this machine."""

    url: str = ""
    path: str = ""
    is_editable: bool = False


def requirement(extra: str = "") -> str:
    """Return the requirement of this mqtune: by its path or URL if it was installed from one, else by its version.

    A name alone would have pip run the code of any project of this name on an index.
    """
    name, url = f"mqtune[{extra}]" if extra else "mqtune", source().url
    return f"{name} @ {url}" if url else f"{name}=={__version__}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this mqtune."""
    found = source()
    return f"pip install -e '{found.path}[{extra}]'" if found.is_editable else f"pip install '{requirement(extra)}'"


def source() -> Source:
    """Return the place that mqtune was installed from."""
    # Few processes need these.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415
    from urllib.parse import unquote  # noqa: PLC0415

    try:
        found = json.loads(distribution("mqtune").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return Source()
    url = str(found.get("url", ""))
    path = unquote(url.removeprefix("file://")) if url.startswith("file://") else ""
    if vcs := found.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return Source(url, path, is_editable=bool(found.get("dir_info", {}).get("editable")))
