"""Which variables of the environment an experiment may set for its trials."""

from __future__ import annotations

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.trainable import check_variable


@pytest.mark.parametrize("name", ["WANDB_MODE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "http_proxy", "_X"])
def test_a_variable_that_runs_no_other_code_is_accepted(name: str) -> None:
    assert check_variable(name, "a b=c") == "a b=c"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("LD_PRELOAD", "other code"),
        ("PYTHONPATH", "other code"),
        ("PYTHONSTARTUP", "other code"),
        ("PATH", "other code"),
        ("BASH_ENV", "other code"),
        ("CUDA_VISIBLE_DEVICES", "by the worker"),
        ("MQTUNE_BROKER", "by the worker"),
        ("A B", "can't be a variable"),
        ("1X", "can't be a variable"),
    ],
)
def test_a_variable_that_could_run_other_code_or_is_the_workers_is_refused_by_its_name(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        mqtune.Process(env={name: "x"})

    assert name in str(refused.value)


@pytest.mark.parametrize("env", [["A"], {"A": 1}, {1: "a"}, {"A": "x\0"}])
def test_variables_are_names_and_texts(env: object) -> None:
    with pytest.raises(ConfigurationError):
        mqtune.Process(env=env)  # type: ignore[arg-type]
