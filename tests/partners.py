"""Whether the version of another tuner that is here has what mqtune uses of it."""

from __future__ import annotations

from importlib.metadata import version


def check_has(library: str, owner: object, member: str, module: str) -> None:
    """Fail if an object of a library lacks a member, or a member of that, which a module of mqtune uses."""
    found, whose = owner, getattr(owner, "__name__", type(owner).__name__)
    for name in member.split("."):
        assert hasattr(found, name), (
            f"{library} {version(library)} has no {whose}.{member}, which mqtune/integrations/{module} uses: "
            "find another way there, or leave this version out in pyproject.toml"
        )
        found = getattr(found, name)


def in_this_syne_tune(program: str) -> str:
    """Return a program of the docs with the names of the Syne Tune that is here."""
    return program.replace("time_attr=", "resource_attr=") if version("syne_tune").startswith("0.13") else program
