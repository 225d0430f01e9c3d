"""Search spaces and searchers.

This package exports the names for writing a searcher. ``mqtune`` exports the searchers and domains themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.search.base import WAIT, PastTrial, Searcher
    from mqtune.search.encoding import Encoding

__all__ = ["WAIT", "Encoding", "PastTrial", "Searcher"]

_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("PastTrial", "Searcher", "WAIT"), "mqtune.search.base"),
    "Encoding": "mqtune.search.encoding",
    # Internal names, for unit tests.
    **dict.fromkeys(("BackgroundSearcher",), "mqtune.search.background"),
    **dict.fromkeys(("Suggestion", "searcher_named"), "mqtune.search.base"),
    **dict.fromkeys(("domain_of",), "mqtune.search.domains"),
    **dict.fromkeys(("Choice", "Domain", "Multiples", "Normal", "Ordinal", "RoundedNormal"), "mqtune.search.kinds"),
    **dict.fromkeys(("Kind", "parameter"), "mqtune.search.model"),
    **dict.fromkeys(("Nobody", "searcher_of"), "mqtune.search.points"),
    **dict.fromkeys(("AnySpace", "space_of"), "mqtune.search.space"),
}
__getattr__ = found_when_used(__name__, _HOMES, checked_early=(__name__,))
