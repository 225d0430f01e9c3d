"""What mqtune uses of other tuners that they keep private: it is little, and stands in one module for each of them."""

from __future__ import annotations

from typing import Final

from partners import FOLDER, private_names

#: Private members of other libraries, by the module that uses them.
KNOWN: Final = {
    "ax_private.py": {"_maybe_experiment", "_maybe_generation_strategy", "_data_rows", "_load_attempted"},
    "optuna_private.py": {
        *("_storage", "_thread_local", "_stop_flag", "_backend", "_set_trial", "_trial_id"),
        # The values that samplers were given, and how TPE divides trials.
        *("_search_space", "_fixed_params", "_base_sampler", "_tpe", "_split_trials"),
    },
}


def test_private_members_of_other_tuners_are_used_in_these_modules_alone() -> None:
    found = {path.name: names for path in sorted(FOLDER.glob("*.py")) if (names := private_names(path))}

    assert found == KNOWN
    assert len(set.union(*KNOWN.values())) <= 15
