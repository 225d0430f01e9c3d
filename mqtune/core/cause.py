"""Reasons why an experiment waits, as data. The kernel and each service list their own."""

from __future__ import annotations

from typing import NamedTuple


class Cause(NamedTuple):
    """A reason why an experiment waits, and what a person can do.

    Attributes:
        meaning: the cause, for the docs.
        way_out: the next step for a person; empty if nothing helps. ``{NAME}`` and ``{TRIAL}`` stand for the experiment
            and the trial, ``{MORE}`` for the command that gives the experiment more slots.
        begins: how this cause begins in a driver's ``reason``; empty if drivers never give it.
    """

    meaning: str
    way_out: str = ""
    begins: str = ""
