"""Programs that read their arguments or a settings file at the top run in a trial as they do by hand."""

from __future__ import annotations

import json

import pytest
from harness import WAYS_ANEW, Programs


@pytest.mark.parametrize("programs", WAYS_ANEW, indirect=True)
def test_arguments_that_are_parsed_at_the_top_are_those_of_the_driver(programs: Programs):
    programs.check("argparse_strict.py", "--epochs", "3", "--shift", "0.5")


@pytest.mark.parametrize("programs", ["resumed on a fleet"], indirect=True)
def test_a_configuration_file_with_overrides_is_the_one_of_the_driver(programs: Programs):
    programs.check("yaml_config.py", "epochs=3", "model.width=6", "optimizer.momentum=0.75")


@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_an_edited_settings_file_counts_for_the_next_experiment(programs: Programs):
    names = [f"settings-{weight}" for weight in (1, 2)]
    for weight, name in enumerate(names, start=1):
        (programs.project / "settings.json").write_text(json.dumps({"weight": weight}))
        finished = programs.run("settings_file.py", name, name=name)
        finished.check_completed()
        assert [row.get("loss") for row in finished.rows] == [weight * trial.config["x"] for trial in finished.results]
