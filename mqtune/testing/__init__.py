"""Contract suites for extensions: subclass one, override its fixtures, and run pytest.

They are ``BackendContract`` in ``mqtune.testing.backends``, ``SchedulerContract`` in ``schedulers``,
``SearcherContract`` in ``searchers``, ``StopRuleContract`` in ``stop_rules``, ``StoreContract`` in ``stores`` and
``CallbackContract`` in ``callbacks``.
"""

from __future__ import annotations

import pytest

# Their assertions show both sides, as in test modules.
pytest.register_assert_rewrite(
    *(
        f"mqtune.testing.{name}"
        for name in ("backends", "callbacks", "schedulers", "searchers", "stop_rules", "stores", "worlds")
    )
)
