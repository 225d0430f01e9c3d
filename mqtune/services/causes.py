"""The causes of waiting that services add to ``mqtune why``.

The list is apart from the drivers' list of services, so that a command needs no driver's modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mqtune.core.cause import Cause
from mqtune.services.gangs import causes as gangs
from mqtune.services.shares import causes as shares
from mqtune.services.submissions import causes as submissions

CAUSES: Final[tuple[Mapping[str, Cause], ...]] = (submissions.CAUSES, shares.CAUSES, gangs.CAUSES)


def causes_of_services() -> dict[str, Cause]:
    """Return the causes of all services, by the word that ``--json`` prints."""
    return {name: cause for causes in CAUSES for name, cause in causes.items()}
