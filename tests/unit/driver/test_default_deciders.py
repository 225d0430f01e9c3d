"""The searcher and the scheduler of an experiment whose user gives none."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from test_definitions import RECORDED

import mqtune
from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.version import install_command
from mqtune.driver import DefinitionWriter, Plan
from mqtune.search.random import RandomSearcher

#: As it is before the tests have random search for the default.
DEFAULT = Plan._default_searcher
SPACE = {"x": mqtune.uniform(0, 1)}


def curve(config: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": config["x"] / (step + 1), "size": config["x"]}) for step in range(9)]


def tuned(space: dict[str, Any] = SPACE, **options: Any) -> mqtune.Tuner:
    usual: dict[str, Any] = {"metric": "loss", "mode": "min", "name": "x", "max_trials": 3}
    return mqtune.Tuner(curve, space, backend=mqtune.Simulated(curve, slots=2), **{**usual, **options})


def described(**options: Any) -> dict[str, Any]:
    """Return what an experiment of these arguments is."""
    found: dict[str, Any] = DefinitionWriter(tuned(**options)._runner.plan).definition(None)
    return found


@pytest.fixture(autouse=True)
def the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default searcher that users have."""
    monkeypatch.setattr(Plan, "_default_searcher", DEFAULT)


@pytest.fixture
def no_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Optuna not be installed."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "mqtune.integrations.optuna", raising=False)


def test_without_a_searcher_it_is_tpe_and_the_first_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    results = tuned().run()

    first = capsys.readouterr().err.splitlines()[0]
    assert first == "x · searcher tpe; no scheduler, each trial runs to its end"
    assert len(results) == 3


@pytest.mark.usefixtures("no_optuna")
def test_without_optuna_it_is_random_search_and_the_first_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    tuned().run()

    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("x · searcher random (Optuna can't be imported (")
    assert first.endswith(f"{install_command('optuna')}); no scheduler, each trial runs to its end")


@pytest.mark.parametrize(
    ("space", "max_trials"),
    [
        ({**SPACE, "seed": mqtune.grid_search([1, 2])}, 30),
        ({"x": mqtune.choice([0.1, 0.2, 0.3])}, 3),
        ({"x": 0.5}, None),
    ],
    ids=["a grid", "trials enough for each config", "constants"],
)
def test_what_random_search_goes_through_whole_is_not_left_to_a_model(
    space: dict[str, Any], max_trials: int | None
) -> None:
    assert described(space=space, max_trials=max_trials)["searcher"]["searcher"] == "random"


def test_without_a_searcher_there_are_as_many_trials_as_before() -> None:
    assert described(max_trials=None)["max_trials"] == 1


def test_a_searcher_that_is_named_is_that_one() -> None:
    assert described(searcher="random")["searcher"]["searcher"] == "random"


def test_an_experiment_that_began_by_random_search_continues_by_it() -> None:
    began = described(searcher="random", seed=1)
    writer = DefinitionWriter(tuned(max_trials=5)._runner.plan)

    now = writer.definition(encode_value(began))

    assert now == {**began, "max_trials": 5}
    assert isinstance(writer.plan.searcher(1), RandomSearcher)


@pytest.mark.usefixtures("no_optuna")
def test_an_experiment_that_began_by_tpe_does_not_continue_by_chance() -> None:
    began = json.loads(RECORDED.read_text())["bounds"]
    writer = DefinitionWriter(tuned(metric=["loss", "latency<=10", "room >= 0.5"])._runner.plan)

    with pytest.raises(ConfigurationError, match="Optuna can't be imported"):
        writer.definition(encode_value(began))


def test_with_max_t_bad_trials_are_stopped_early() -> None:
    definition = described(max_t=9)

    assert definition["scheduler"] == described(scheduler=mqtune.ASHA(9))["scheduler"]
    assert "max_t" not in definition


def test_with_max_t_and_several_metrics_the_scheduler_goes_by_all() -> None:
    several = {"metric": ["loss", "size"], "max_t": 9}

    assert (
        described(**several)["scheduler"] == described(metric=["loss", "size"], scheduler=mqtune.MOASHA(9))["scheduler"]
    )


def test_max_t_is_not_given_beside_a_scheduler() -> None:
    with pytest.raises(ConfigurationError, match=r"max_t=9 is for the default scheduler.*MedianStopping\("):
        tuned(max_t=9, scheduler=mqtune.MedianStopping())


@pytest.mark.parametrize("max_t", [0, -1, "9", float("nan")])
def test_max_t_is_a_positive_number(max_t: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_t"):
        tuned(max_t=max_t)


def test_a_searcher_that_compares_whole_trials_refuses_max_t_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match="leave max_t out"):
        tuned({**SPACE, "seed": mqtune.choice([1, 2])}, searcher=mqtune.Repeater("seed"), max_t=9)
