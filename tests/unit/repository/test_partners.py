"""What mqtune uses of other tuners that they keep private: it is little, and stands in one module for each of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final

import pytest
from partners import FOLDER, check_has, private_names

#: Private members of other libraries, by the module that uses them.
KNOWN: Final = {
    "ax_private.py": {"_maybe_experiment", "_maybe_generation_strategy", "_data_rows", "_load_attempted"},
    "optuna_private.py": {"_storage", "_thread_local", "_stop_flag", "_backend", "_set_trial", "_trial_id"},
}


def test_private_members_of_other_tuners_are_used_in_these_modules_alone() -> None:
    found = {path.name: names for path in sorted(FOLDER.glob("*.py")) if (names := private_names(path))}

    assert found == KNOWN
    assert len(set.union(*KNOWN.values())) <= 10


def test_a_version_that_lacks_a_member_is_named_with_what_uses_it() -> None:
    has = SimpleNamespace(_thread_local=SimpleNamespace(in_optimize_loop=False))

    check_has("pytest", has, "_thread_local.in_optimize_loop", "optuna_private.py")

    for lacks in (SimpleNamespace(), SimpleNamespace(_thread_local=None)):
        with pytest.raises(
            AssertionError, match=rf"pytest {pytest.__version__} has no SimpleNamespace\._thread_local\.in_.*optuna_pri"
        ):
            check_has("pytest", lacks, "_thread_local.in_optimize_loop", "optuna_private.py")
