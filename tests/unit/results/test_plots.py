"""Pictures: their contents, both libraries that draw them, and odd, few and many trials."""

from __future__ import annotations

import json
import math
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from book import ASHA, Book
from notebook_view import shown

import mqtune
from mqtune import Results, Space
from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.trial import Attempt, AttemptEnd, TrialId
from mqtune.core.version import install_command
from mqtune.results import KINDS, MOST_POINTS, Compared, Plots, TimelineBar, slots
from mqtune.results.plots import by_plotly

NAN, INF = math.nan, math.inf
#: With a name that is markup for one library, a formula for the other, and several lines.
EVIL = "</script><script>alert(1)</script> $\\frac{ <b>\n"


def results_of(book: Book) -> Results:
    return Results.load(book.save())


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "trials-of-mine", scheduler=ASHA)


def curve(config: dict[str, Any]):
    noise = random.Random(str(config))
    for epoch in range(1, 10):
        loss = abs(math.log10(config["lr"]) + 2) + 2 / epoch + noise.random() / 9
        yield 60.0 * (1 + noise.random()), {"loss": loss, "size": config["width"] + noise.random()}


SPACE: dict[str, Any] = {
    "lr": mqtune.loguniform(1e-4, 1),
    "width": mqtune.randint(8, 256),
    "opt": mqtune.choice([{"name": "sgd", "momentum": mqtune.uniform(0, 1)}, {"name": "adam"}]),
}


def tuned(name: str, **arguments: Any) -> Results:
    options = {"metric": "loss", "mode": "min", "max_trials": 24, "seed": 1, **arguments}
    backend = mqtune.Simulated(curve, slots=4)
    return mqtune.Tuner(
        curve, SPACE, name=name, backend=backend, run=mqtune.RunOptions(progress=False), **options
    ).run()


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MQTUNE_HOME", str(tmp_path_factory.mktemp("home")))
        mutations = {"lr": mqtune.loguniform(1e-4, 1)}
        return {
            "promotion": tuned("promotion", scheduler=mqtune.PromotionASHA(9)),
            "pbt": tuned("pbt", max_trials=4, scheduler=mqtune.PBT(2, mutations)),
            "several": tuned("several", metric=["loss", "size"], mode=["min", "max"]),
        }


#: An experiment that has something for each kind.
HAS = {**dict.fromkeys(KINDS, "promotion"), "lineage": "pbt", "pareto": "several"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_picture_is_drawn_by_both_libraries(experiments: dict[str, Results], kind: str, tmp_path: Path):
    picture = experiments[HAS[kind]].plot.draw(kind)

    picture.save(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    # It checks each name and value of the data and the layout.
    figure = picture.figure("plotly")
    assert sum(len(trace.x) for trace in figure.data) >= len(picture.dataframe()) > 0
    bundle = shown(picture, "mimebundle")
    assert bundle["image/png"].startswith(b"\x89PNG")
    json.dumps(bundle["application/vnd.plotly.v1+json"], allow_nan=False)
    assert "trials" in picture.note
    for panel in picture.panels:
        assert panel.x.label or panel.x.ticks
        assert panel.y.label or panel.y.ticks


def test_no_picture_has_a_button_that_sends_it_to_somebody(experiments: dict[str, Results], tmp_path: Path):
    picture = experiments["promotion"].plot.history()
    picture.save(tmp_path / "picture.html")
    page = (tmp_path / "picture.html").read_text(encoding="utf-8")
    kernel: Any = shown(picture, "mimebundle")["application/vnd.plotly.v1+json"]

    # Given a list, plotly.js shows no other buttons.
    (listed,) = re.findall(r'"modeBarButtons": (\[\[.*?\]\])', page)
    assert json.loads(listed) == kernel["config"]["modeBarButtons"] == [["zoom2d", "pan2d", "resetScale2d", "toImage"]]


def test_an_attempt_has_the_first_slot_of_its_worker_that_is_free():
    def run(begin: float, end: float, worker: str = "w1") -> TimelineBar:
        return TimelineBar(TrialId("0001"), Attempt(1, begin, worker=worker), begin, end)

    # The fourth begins while the end of the first is being written.
    found = slots([run(0, 10.01), run(0, 20), run(5, 30, "w2"), run(10, 30), run(15, 16), run(20, 21)])

    assert " ".join(f"{slot.worker}:{slot.number}" for slot in found) == "w1:0 w1:1 w2:0 w1:0 w1:2 w1:1"


@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_without_trials_or_without_values_says_so(book: Book, tmp_path: Path, kind: str):
    with pytest.raises(NothingToDraw, match="trials-of-mine"):
        results_of(book).plot.draw(kind)
    bad = Book(tmp_path / "bad", scheduler=ASHA)
    bad.run("0001", NAN, INF)
    bad.stage("0002", start=False)

    if kind != "timeline":
        with pytest.raises(NothingToDraw, match="'bad'"):
            results_of(bad).plot.draw(kind)


def test_an_experiment_without_a_metric_says_so(tmp_path: Path):
    book = Book(tmp_path / "open", metric="", accept_no_report=True)
    book.run("0001", 1.0)
    plot = results_of(book).plot

    for kind in ("history", "slices", "pareto"):
        with pytest.raises(NothingToDraw, match="it has no metric"):
            plot.draw(kind)
    assert "attempts: 1, slots: 1" in plot.timeline().note


def test_what_a_trial_calls_things_is_neither_markup_nor_a_formula(tmp_path: Path):
    book = Book(tmp_path / "evil", metric=EVIL)
    for number in range(6):
        book.stage(f"{number}", {EVIL: number, "c": f"{EVIL}{number}"})
        book.report(f"{number}", {EVIL: float(number)})
        book.end(f"{number}")
    plot = results_of(book).plot

    for picture in (plot.history(), plot.parallel(), plot.slices()):
        picture.save(tmp_path / "picture.svg")
        picture.save(tmp_path / "picture.html")
        page = (tmp_path / "picture.html").read_text()
        # Plotly renders some markup in its texts.
        texts = json.dumps(by_plotly.plain(picture))
        assert "<script>" not in texts
        assert "&lt;script&gt;" in texts
        # Nothing is fetched from elsewhere.
        assert 'src="http' not in page


def test_of_many_trials_and_reports_some_are_drawn_and_the_best_is_among_them(book: Book):
    count = 1_600
    for number in range(count):
        losses = (1 + (number * 7919 % count) / count + 1 / epoch for epoch in range(1, 5))
        book.run(f"{number:04}", *losses, config={"lr": 10 ** (-4 * number / count), "kind": f"k{number % 50}"})
    results = results_of(book)
    began = time.process_time()

    for kind in ("history", "curves", "parallel", "slices", "timeline", "rungs"):
        picture = results.plot.draw(kind)
        rows = list(picture.rows())
        assert 0 < len(rows) <= 1.2 * MOST_POINTS, kind
        assert kind == "timeline" or results.best.id in {row["label"] for row in rows}, kind
        picture.figure("matplotlib")
    assert "200 of 1,600 trials" in results.plot.curves().note

    # 6,400 reports are read four times; it takes some 2 s.
    assert time.process_time() - began < 20


def test_unknown_names_and_missing_libraries_are_named(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    book.run("0001", 1.0)
    results = results_of(book)
    plot = results.plot

    with pytest.raises(ConfigurationError, match="there are history, curves"):
        plot.draw("curvess")
    with pytest.raises(ConfigurationError, match=r"ends in \.png, \.svg"):
        plot.curves().save(tmp_path / "curves.jpeg")
    with pytest.raises(ConfigurationError, match="plotly"):
        plot.curves().figure("bokeh")
    monkeypatch.setattr("mqtune.results.plots.picture.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=re.escape(install_command("plot"))):
        results.plot  # noqa: B018


def halved(book: Book, *, worst: float = 1.0) -> Results:
    """Return an experiment of 60 trials: 20 reach epoch 3 and 7 epoch 9. Small rates are better."""
    for number in range(60):
        id_ = f"{number:04}"
        last = 9 if number < 7 else 3 if number < 20 else 1
        book.stage(id_, {"lr": 10 ** (-number / 20), "opt": "adam" if number % 2 else "sgd", "width": number % 7})
        loss = worst if number == 59 else 1 + number / 100
        book.report(id_, *({"loss": loss / epoch, "training_iteration": epoch} for epoch in range(1, last + 1)))
        if last < 9:
            book.decide(id_)
        book.end(id_, AttemptEnd.STOPPED if last < 9 else AttemptEnd.COMPLETED)
    return results_of(book)


def values_of(picture: Any, parameter: str) -> dict[str, float]:
    (panel,) = (each for each in picture.panels if each.key == parameter)
    named = (zip(each.labels, each.y, strict=True) for each in panel.series if each.name not in ("median", "best"))
    return {trial: value for pairs in named for trial, value in pairs}


def test_parameters_are_compared_at_one_time_that_enough_trials_have_reached(book: Book):
    plot = halved(book).plot

    slices = plot.slices()
    at_three = plot.slices(at=3)
    at_best = plot.slices(at=math.inf)

    assert slices.levels is not None
    assert [(each.time, each.count) for each in slices.levels.every] == [(1, 60), (3, 20), (9, 7), (math.inf, 60)]
    # Only epoch 1 was reached by 30 trials.
    assert slices.levels.shown.time == 1
    assert values_of(slices, "lr") == {f"{number:04}": 1 + number / 100 for number in range(59)} | {"0059": 1.0}
    assert values_of(at_three, "lr") == {f"{number:04}": (1 + number / 100) / 3 for number in range(20)}
    assert values_of(at_best, "lr")["0000"] == pytest.approx(1 / 9)
    assert "at iteration 3" in at_three.note
    # All pictures of parameters have the same trials.
    lines = {row["label"] for row in plot.parallel(at=3).rows()}
    assert lines == {f"{number:04}" for number in range(20)}
    assert plot.importances(at=3).levels == at_three.levels


def test_without_a_scheduler_parameters_are_those_of_completed_trials(tmp_path: Path):
    book = Book(tmp_path / "plain")
    for number in range(12):
        book.run(f"{number:04}", 1.0 + number, config={"lr": number / 10})
    book.stage("0012", {"lr": 5.0})
    book.report("0012", {"loss": 0.1})

    slices = results_of(book).plot.slices()

    assert slices.levels is None
    assert set(values_of(slices, "lr")) == {f"{number:04}" for number in range(12)}


def test_the_latest_of_several_times_with_enough_trials_is_chosen(book: Book):
    for number in range(60):
        id_ = f"{number:04}"
        book.stage(id_, {"lr": number / 60})
        book.report(id_, *({"loss": 1.0, "training_iteration": epoch} for epoch in range(1, 4 if number < 40 else 2)))
        book.decide(id_)
        book.end(id_, AttemptEnd.STOPPED)

    levels = results_of(book).plot.slices().levels

    assert levels is not None
    # Both epochs 1 and 3 were reached by 30 trials.
    assert levels.shown.time == 3


def test_selected_trials_are_all_drawn_at_their_best_and_no_report_is_read(tmp_path: Path):
    book = Book(tmp_path / "plain")
    book.run("0001", 1.0, config={"lr": 0.1})
    book.stage("0002", {"lr": 0.2})
    book.report("0002", {"loss": 0.5})

    def unread(*_: object) -> Any:
        pytest.fail("the reports were read")

    picture = Plots(results_of(book), unread).parallel(apart=True)

    assert {series.name for series in picture.panels[0].series} == {"trial 0001", "trial 0002"}
    assert picture.levels is None


@pytest.mark.parametrize("by", ["trial", "time"])
def test_a_legend_counts_undrawn_trials_of_an_experiment_with_constraints_too(tmp_path: Path, by: str):
    book = Book(tmp_path / "limited", metric=["loss", "latency <= 10"])
    for number in range(2_400):
        book.stage(f"{number:04}", {"lr": number})
        book.report(f"{number:04}", {"loss": float(-number), "latency": 20 if number % 4 == 3 else 5})
        book.end(f"{number:04}")

    (panel,) = results_of(book).plot.history(by=by).panels

    (completed,) = (series for series in panel.series if series.name == "completed")
    assert completed.count == 1_800 > len(completed.x)
    # Trial 2399 violates the constraint.
    (line,) = (series for series in panel.series if series.name == "best" and series.look.width)
    assert line.y[-1] == -2_398


def test_the_range_of_the_best_fifth_is_tinted_and_named_with_its_edge(tmp_path: Path):
    space = {"lr": mqtune.loguniform(1e-3, 1), "width": mqtune.randint(0, 6), "opt": mqtune.choice(["sgd", "adam"])}
    book = Book(tmp_path / "spaced", scheduler=ASHA, space=Space(space).describe())
    panels = {each.key: each for each in halved(book, worst=9.0).plot.slices().panels}

    low, high = panels["lr"].band or (0, 0)
    assert (low, high) == (pytest.approx(10 ** (-11 / 20)), 1)
    # Better values may be beyond the space's end.
    assert panels["lr"].note == "best 20 %: 0.282 – 1, at the edge of the range"
    assert panels["width"].note == "best 20 %: 0 – 6"
    assert panels["opt"].band is None
    assert panels["opt"].note in ("best 20 %: sgd, adam", "best 20 %: adam, sgd")
    assert {each.name for each in panels["opt"].series} >= {"median"}


def test_a_diverged_trial_is_a_caret_at_the_edge_and_flattens_no_other(book: Book):
    (lr,) = (each for each in halved(book, worst=1e6).plot.slices().panels if each.key == "lr")

    (beyond,) = (each for each in lr.series if each.name == "beyond the axis")
    assert "0059" in beyond.labels
    assert max(value for each in lr.series for value in each.y) < 2


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_best_line_has_the_best_of_all_reports_so_far(tmp_path: Path, mode: Any):
    book, noise = Book(tmp_path / "overlapping", mode=mode), random.Random(1)
    # Three trials run at a time, and each reports what it had first, then something else.
    for number in range(60):
        book.stage(f"{number:04}", {"lr": number})
        for id_ in range(max(0, number - 2), number + 1):
            book.report(f"{id_:04}", {"loss": noise.choice([noise.random(), NAN, INF])})
        if number >= 2:
            book.end(f"{number - 2:04}")
    results = results_of(book)

    (panel,) = results.plot.history().panels

    drawn = next(zip(each.x, each.y, strict=True) for each in panel.series if each.name == "best" and each.look.width)
    expected, best = [], math.inf if mode == "min" else -math.inf
    for report in results.reports():
        value = report.metrics["loss"]
        if math.isfinite(value) and (value < best if mode == "min" else value > best):
            best = value
            expected.append((report.timestamp, value))
    # A step has two points, and the first one lies where it begins.
    steps = [point for place, point in enumerate(drawn) if place % 2 == 0]
    assert [y for _, y in steps] == [y for _, y in expected]
    units = {
        round((at - results.experiment.created_at) / x, 6) for (x, _), (at, _) in zip(steps, expected, strict=True)
    }
    assert len(units) == 1


def test_fewer_trials_than_importances_need_are_counted(book: Book):
    with pytest.raises(NothingToDraw, match=r"needs 20 trials at iteration 9, and there are 7; .*at=math.inf"):
        halved(book).plot.importances(at=9)


def test_experiments_with_other_metrics_or_directions_share_no_axis(tmp_path: Path):
    every = {}
    for name, metric, mode in (
        ("a", "loss", "min"),
        ("b", "loss", "min"),
        ("c", "loss", "max"),
        ("d", "accuracy", "max"),
    ):
        book = Book(tmp_path / name, metric=metric, mode=mode)
        for number in range(3):
            book.stage(f"{number:04}", {"lr": number / 10})
            book.report(f"{number:04}", {metric: float(number)})
            book.end(f"{number:04}")
        every[name] = results_of(book)

    for kind in ("runs", "bests"):
        panels = Compared(every).draw(kind).panels
        assert {each.title: [series.name for series in each.series] for each in panels} == {
            "loss ↓": ["a", "b"],
            "loss ↑": ["c"],
            "accuracy ↑": ["d"],
        }
    assert [each.title for each in Compared(every).draw("parameters").panels] == [
        "loss ↓ by lr", "loss ↑ by lr", "accuracy ↑ by lr",
    ]  # fmt: skip
