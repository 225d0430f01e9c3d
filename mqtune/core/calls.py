"""Signatures of user functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function or class.

    Annotations are not evaluated from Python 3.14 on (PEP 649): they may name imports for type checkers only.

    Raises:
        TypeError: *function* is not callable.
        ValueError: *function* has no signature, like some builtins.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # noqa: PLC0415 - earlier ones have no such module

        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)
