"""Contract suites: tests that extensions of mqtune must pass.

Subclass a suite, override its fixtures, and run pytest. The suites are ``BackendContract`` in
``mqtune.testing.backends``, ``SchedulerContract`` in ``schedulers``, ``SearcherContract`` in ``searchers``,
``StopRuleContract`` in ``stop_rules``, ``StoreContract`` in ``stores`` and ``CallbackContract`` in ``callbacks``.
"""

from __future__ import annotations

import pytest

# With this, failed assertions in these modules show both sides, as they do in test modules.
pytest.register_assert_rewrite(
    *(
        f"mqtune.testing.{name}"
        for name in ("backends", "callbacks", "schedulers", "searchers", "stop_rules", "stores", "worlds")
    )
)
