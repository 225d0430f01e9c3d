"""Contract suites for what others can bring to mqtune: subclass one, override its fixtures, and run it with pytest.

``mqtune.testing.backends`` has the one for backends, ``mqtune.testing.stores`` the one for checkpoint stores.
"""

from __future__ import annotations

import pytest

# Their assertions show both sides, as those of a test's own module do.
pytest.register_assert_rewrite("mqtune.testing.backends", "mqtune.testing.stores")
