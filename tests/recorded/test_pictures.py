"""Pictures that were recorded: each kind shows of each recorded experiment what it showed."""

from __future__ import annotations

import json

import pytest
from drawn import EXPERIMENTS, FOLDER, drawn


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_pictures_show_of_a_recorded_experiment_what_they_showed_then(name: str):
    now, then = drawn(name), json.loads((FOLDER / f"{name}.json").read_text())

    assert now.keys() == then.keys()
    for kind, picture in now.items():
        assert picture == then[kind], kind
