"""Search spaces, and searchers: which configs an experiment may try, and what to try next.

Here is what a searcher of your own needs; the others are in ``mqtune`` itself.
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
}
__getattr__ = found_when_used(__name__, _HOMES, checked_early=(__name__,))
