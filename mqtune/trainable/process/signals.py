"""What Python's own functions for signals wrap: these make a member of an enumeration of each signal that they return.

That takes most of their time, and each forked trial blocks as many signals as there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Final

_signal = importlib.import_module("_signal")
#: As ``signal.getsignal``, but the default and to ignore it are plain numbers.
handler_of: Final[Callable[[int], object]] = _signal.getsignal
#: As ``signal.pthread_sigmask``, but what was blocked before is a set of plain numbers.
change_mask: Final[Callable[[int, Iterable[int]], set[int]]] = _signal.pthread_sigmask
