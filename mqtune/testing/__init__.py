"""Suites of tests that say what each plug-in must keep: subclass one, override its fixture, and run it with pytest.

``mqtune.testing.stores`` has the one for checkpoint stores, ``mqtune.testing.journals`` the one for journals,
``mqtune.testing.backends`` the one for what a tuner does with trials on a backend.
"""

from __future__ import annotations

import pytest

# Their assertions should say what was compared, as those of a test's own module do.
pytest.register_assert_rewrite("mqtune.testing.backends", "mqtune.testing.journals", "mqtune.testing.stores")
