"""What keeps a worker or its devices from their work, as tests look at it."""

from __future__ import annotations

from mqtune.worker import Impairments


def nothing_impaired() -> Impairments:
    """Return impairments of which nobody hears."""
    return Impairments(lambda: None)


def reasons(impairments: Impairments) -> str:
    """Return them as a worker's note has them."""
    return "; ".join(each.reason for each in impairments.all)


def quarantined(impairments: Impairments) -> set[str]:
    """Return the devices that are quarantined."""
    return {each.device for each in impairments.all}
