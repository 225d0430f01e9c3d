"""Python's signal functions without their slow wrappers.

The wrappers make an enumeration member for each signal, which takes most of their time. Each forked trial sets the mask
of all signals.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Final

_signal = importlib.import_module("_signal")
#: As ``signal.getsignal``, but SIG_DFL and SIG_IGN are plain numbers.
handler_of: Final[Callable[[int], object]] = _signal.getsignal
#: As ``signal.pthread_sigmask``, but the previous mask is a set of plain numbers.
change_mask: Final[Callable[[int, Iterable[int]], set[int]]] = _signal.pthread_sigmask
