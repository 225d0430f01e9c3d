"""Causes of waiting, as data: the kernel and each service list their own."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """A cause of waiting, and its way out.

    Attributes:
        meaning: the cause, for the docs.
        way_out: a hint for a person, with NAME and TRIAL in braces; empty if nothing helps. MORE in braces becomes the
            command that gives the experiment a larger share.
        begins: the first words of a driver's ``reason`` with this cause; empty if drivers never give it.
    """

    meaning: str
    way_out: str = ""
    begins: str = ""
