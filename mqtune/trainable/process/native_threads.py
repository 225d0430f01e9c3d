"""Limits the threads of libraries that were loaded before the environment set the limit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from typing import Final

from mqtune.trainable.process import footprint

#: Variable by which a worker shares its cores among its slots.
_VARIABLE: Final = "OMP_NUM_THREADS"
_LIBRARY: Final = re.compile(r"/\S*(?:libgomp|openblas)\S*\.so\S*")
#: Functions that set the number in copies of GNU's OpenMP and OpenBLAS. Wheels of NumPy and SciPy have their own names.
_FUNCTIONS: Final = (
    "omp_set_num_threads",
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)


def limit_threads() -> None:
    """Limit the threads of loaded libraries to the number in OMP_NUM_THREADS, if it is set."""
    text = os.environ.get(_VARIABLE, "")
    if not text.isdecimal() or not int(text):
        return
    for path in set(_LIBRARY.findall(footprint.memory_map())):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)
            for name in _FUNCTIONS:
                if (set_number := getattr(library, name, None)) is not None:
                    set_number(int(text))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(text))
