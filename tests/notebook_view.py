"""The display of values in a notebook, by IPython's protocol but without IPython."""

from __future__ import annotations

from typing import Any, Literal

__all__ = ["shown"]


def shown(value: object, kind: Literal["html", "mimebundle"]) -> Any:
    """Return the display of a value."""
    return getattr(value, f"_repr_{kind}_")()
