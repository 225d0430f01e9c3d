"""The package's extensions pass mqtune's contract suites."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from mqtune_extras.backend import Threads
from mqtune_extras.callback import ReportLines
from mqtune_extras.rule import Patience
from mqtune_extras.scheduler import Trailing
from mqtune_extras.searcher import Line, Middle
from mqtune_extras.store import Shelf

import mqtune
from mqtune.checkpoints import open_store
from mqtune.search import Searcher
from mqtune.testing.backends import BackendContract, NewTuner
from mqtune.testing.callbacks import CallbackContract, NewCallback
from mqtune.testing.play import play_unsaved, reports
from mqtune.testing.schedulers import NewScheduler, SchedulerContract
from mqtune.testing.searchers import NewSearcher, SearcherContract
from mqtune.testing.stop_rules import NewRule, StopRuleContract
from mqtune.testing.stores import StoreContract


class TestThreads(BackendContract):
    runs_processes = False
    takes_several_tasks = False

    @pytest.fixture
    def new_tuner(self) -> NewTuner:
        backends: dict[str, Threads] = {}

        def new_tuner(*, saves: bool, **arguments: Any) -> mqtune.Tuner:
            backend = backends.setdefault(arguments["name"], Threads(reports, checkpoints=saves))
            return mqtune.Tuner(play_unsaved, backend=backend, **arguments)

        return new_tuner


class TestShelf(StoreContract):
    @pytest.fixture
    def store(self, tmp_path_factory: pytest.TempPathFactory) -> mqtune.checkpoints.CheckpointStore:
        # By its URL: the entry point of the installed package names it.
        store = open_store(f"shelf://{tmp_path_factory.mktemp('shelves')}/with%20space/shelf")
        store.create()
        assert isinstance(store, Shelf)
        return store


class TestTrailing(SchedulerContract):
    @pytest.fixture
    def new_scheduler(self) -> NewScheduler:
        return Trailing


class TestLine(SearcherContract):
    space: ClassVar[dict[str, Any]] = {"lr": mqtune.uniform(0, 1)}

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: Line("lr", 0.0, 1.0, 11)


class TestMiddle(SearcherContract):
    space: ClassVar[dict[str, Any]] = {"lr": mqtune.uniform(0, 1), "act": mqtune.choice(["relu", "tanh"])}

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return Middle


def test_a_script_gives_the_name_of_the_entry_point_and_the_definition_is_enough_to_make_it_again() -> None:
    tuner = mqtune.Tuner(
        lambda _config: None,
        {"x": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        searcher="middle",
        max_trials=3,
        backend=mqtune.Simulated(lambda config: [(1.0, {"loss": config["x"]})]),
        run=mqtune.RunOptions(progress=False),
    )

    results = tuner.run()

    first, *others = [trial.config["x"] for trial in results]
    assert first == 0.5
    assert all(0.25 <= x <= 0.75 for x in others)
    assert results.definition["searcher"] == {"searcher": "middle", "width": 0.5}
    assert type(Searcher.rebuild(results.definition["searcher"])) is Middle


class TestPatience(StopRuleContract):
    @pytest.fixture
    def new_rule(self) -> NewRule:
        return lambda: Patience(3)


class TestReportLines(CallbackContract):
    @pytest.fixture
    def new_callback(self) -> NewCallback:
        return lambda folder: ReportLines(folder / "reports.csv")


def curve(config: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    return [(0.001, {"loss": config["lr"] + 1 / step}) for step in range(1, 9)]


def test_all_of_it_works_in_one_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "position").write_text("6")
    tuner = mqtune.Tuner(
        play_unsaved,
        {"lr": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        max_trials=11,
        backend=Threads(curve, slots=3),
        scheduler=Trailing(factor=2.0),
        searcher=Line("lr", 0.0, 1.0, 11),
        stop=Patience(3),
        checkpoints=mqtune.Checkpoints(store=f"shelf://{tmp_path}/shelf"),
        run=mqtune.RunOptions(callbacks=[ReportLines(tmp_path / "reports.csv")], progress=False),
    )

    # The folder goes into the package's store, and the package's backend reads it from there.
    going_on = tuner.add({"lr": 0.75}, checkpoint=begun)
    results = tuner.run()

    assert tuner.results().definition["store"].startswith(f"shelf://{tmp_path}/shelf/")
    assert [report.metrics["training_iteration"] for report in results.reports(going_on.id)] == [7, 8]
    assert len(results) == 12
    assert results.best.config == {"lr": 0.0}
    assert {result.status.name for result in results} == {"COMPLETED", "EARLY_STOPPED"}
    seen = [report for report in results.reports() if not report.late]
    assert len((tmp_path / "reports.csv").read_text().splitlines()) == len(seen)
