"""What a notebook shows of a value, by IPython's protocol, without IPython."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["shown"]


def shown(value: object, kind: Literal["html", "mimebundle"]) -> Any:
    """Return what a notebook shows of a value."""
    return getattr(value, f"_repr_{kind}_")()
