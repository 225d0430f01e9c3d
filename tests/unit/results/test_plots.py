"""Pictures: what is in them, that both libraries draw them, and what they make of odd, few and many trials."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
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
from mqtune.results import KINDS, MOST_POINTS, Axis, Look, Panel, Picture, Run, Series, Slot, in_numbers, slots
from mqtune.results.plots import by_plotly

NAN, INF = math.nan, math.inf
#: With a name that is markup for one library, a formula for the other, and several lines.
EVIL = "</script><script>alert(1)</script> $\\frac{ <b>\n"


def results_of(book: Book) -> Results:
    return Results.load(book.save())


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "trials-of-mine", scheduler=ASHA)


def points(picture: Picture) -> dict[str, list[tuple[float, float]]]:
    """What is drawn, by series."""
    found = defaultdict(list)
    for row in picture.rows():
        found[row["series"]].append((row["x"], row["y"]))
    return found


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
    options = {"metric": "loss", "mode": "min", "max_trials": 12, "seed": 1, **arguments}
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
def test_each_picture_is_drawn_by_both_libraries_and_kept_by_a_notebook(
    experiments: dict[str, Results], kind: str, tmp_path: Path
):
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


@pytest.mark.parametrize("kind", ["history", "curves", "parallel", "slices", "importances"])
def test_of_several_metrics_each_is_drawn(experiments: dict[str, Results], kind: str):
    picture = experiments["several"].plot.draw(kind)

    words = [*(panel.y.label for panel in picture.panels), *(name for p in picture.panels for _, name in p.x.ticks)]
    both = {"history", "curves", "parallel"}
    assert kind not in both or {"loss", "size"} <= {word.split()[0] for word in words if word}
    picture.figure("matplotlib")
    with pytest.raises(ConfigurationError, match="speed"):
        experiments["several"].plot.slices("speed")


def test_the_best_so_far_leaves_out_what_is_no_number_late_or_given_up(tmp_path: Path):
    book = Book(tmp_path / "up", mode="max")
    book.stage("0001")
    book.report("0001", {"loss": NAN}, {"loss": 2.0}, {"loss": INF}, {"other": 1})
    book.report("0001", {"loss": 1.0})
    book.report("0001", {"loss": 3.0})
    book.decide("0001")
    book.report("0001", {"loss": 99.0})
    book.end("0001", AttemptEnd.STOPPED)
    book.stage("0002")
    book.report("0002", {"loss": 50.0})
    book.decide("0002", "abandon")
    book.end("0002", AttemptEnd.STOPPED)
    book.run("0003")

    found = points(results_of(book).plot.history())

    assert found["best so far"] == [(3.0, 2.0), (5.0, 2.0), (5.0, 3.0), (5.0, 3.0)]
    assert found["early stopped"] == [(5.0, 3.0)]
    assert {*found} == {"best so far", "early stopped"}


def test_curves_say_where_trials_were_stopped_and_begin_again_where_trials_did(book: Book):
    book.stage("0001")
    book.report("0001", *({"loss": each, "training_iteration": n} for n, each in enumerate([3.0, 2.0, 1.5], 1)))
    book.end("0001", AttemptEnd.LOST)
    # From a checkpoint of the first report.
    book.stage("0001")
    book.report("0001", {"loss": 2.5, "training_iteration": 2})
    book.decide("0001")
    book.end("0001", AttemptEnd.STOPPED)
    book.run("0002", 1.0, 0.5)

    picture = results_of(book).plot.curves()

    found = points(picture)
    assert found["early stopped"] == [(1, 3.0), (2, 2.0), (3, 1.5), (2, 2.5)]
    line = next(each for each in picture.panels[0].series if each.name == "early stopped")
    assert math.isnan(line.y[3])
    assert found["early stopped here"] == [(2, 2.5)]
    assert found["best: trial 0002"] == [(1, 1.0), (2, 0.5)]


def test_parameters_are_on_their_own_scale_and_a_trial_without_one_is_left_out_as_is_one_that_is_the_same_in_all(
    experiments: dict[str, Results], book: Book
):
    results = experiments["promotion"]
    for number, lr in enumerate((0.1, 0.2, 0.3), 1):
        book.run(f"{number:04}", 1 / lr, config={"lr": lr, "layers": 3, "name": "mlp"})
    assert [panel.x.label for panel in results_of(book).plot.slices().panels] == ["lr"]

    panels = {panel.x.label: panel for panel in results.plot.slices().panels}

    assert {*panels} == {"lr", "width", "opt.name", "opt.momentum"}
    assert panels["lr"].x.is_log
    assert not panels["width"].x.is_log
    assert [name for _, name in panels["opt.name"].x.ticks] == ["adam", "sgd"]
    with_momentum = sum("momentum" in result.config["opt"] for result in results)
    assert 0 < sum(len(each.x) for each in panels["opt.momentum"].series) == with_momentum < len(results)


@pytest.mark.parametrize(
    ("values", "is_log", "ticks"),
    [
        ([1.0, 2.0, 9.0], False, 1),
        ([1.0, 2.0, 90.0], False, None),
        ([1.0, 2.5], False, None),
        ([0.001, 0.5], True, 1),
        # Powers of ten alone would leave it without any.
        ([0.02, 0.05], True, "D2"),
    ],
)
def test_ticks_stand_where_there_may_be_a_value(values: list[float], is_log: bool, ticks: int | str | None):
    series = Series("", values, [1.0] * len(values), Look("#000000", marker="circle"))
    picture = Picture("", "", [Panel(Axis("x", is_log), Axis("y"), [series])])

    assert by_plotly.plain(picture)["layout"]["xaxis"].get("dtick") == ticks
    places = picture.figure("matplotlib").axes[0].xaxis.get_major_locator()()
    assert ticks != 1 or is_log or all(place == int(place) for place in places)


def test_a_choice_of_numbers_has_no_place_between_them(tmp_path: Path):
    space = {"batch": mqtune.choice([32, 64, 128]), "width": mqtune.randint(1, 200)}
    book = Book(tmp_path / "chosen", space=Space(space).describe())
    for number, batch in enumerate((128, 32, 64, 32), 1):
        book.run(f"{number:04}", 1 / number, config={"batch": batch, "width": 10 * number})

    panels = {panel.x.label: panel for panel in results_of(book).plot.slices().panels}

    assert [name for _, name in panels["batch"].x.ticks] == ["32", "64", "128"]
    assert not panels["width"].x.ticks


def test_slots_come_by_their_numbers():
    names = ["w10@h", "w9@h", "w9@h", "w1@h2", "w1@h10"]
    found = sorted((Slot(name, place) for place, name in enumerate(names)), key=in_numbers)

    assert [slot.worker for slot in found] == ["w1@h2", "w1@h10", "w9@h", "w9@h", "w10@h"]


def test_a_parameter_that_matters_is_more_important_than_one_that_does_not(experiments: dict[str, Results]):
    picture = experiments["several"].plot.importances()

    rows = [name for _, name in picture.panels[0].y.ticks]
    sizes = {rows[int(y)]: x for x, y in points(picture)[""]}
    assert max(sizes, key=lambda name: sizes[name]) == "lr"
    assert math.isclose(sum(sizes.values()), 1)
    # It says on how many it rests, and uses those that were stopped, each with how far it came.
    picture = experiments["promotion"].plot.importances()
    assert "12 trials (1 completed, 11 early stopped)" in picture.note
    assert "chance" in picture.note
    assert "how long trials ran explains" in picture.note


def test_a_rung_that_one_trial_came_to_says_so_of_one_trial(book: Book):
    for trial, epochs in (("0001", 1), ("0002", 3)):
        book.stage(trial, {"lr": 0.1})
        book.report(trial, *({"loss": 1.0, "training_iteration": epoch + 1} for epoch in range(epochs)))

    (panel,) = results_of(book).plot.rungs().panels

    assert [text for _, text in panel.x.ticks][:2] == ["1\n2 trials", "3\n1 trial"]


def test_an_axis_of_whole_numbers_names_whole_numbers_where_they_are(book: Book):
    for trial, width in (("0001", 2), ("0002", 7), ("0003", 4)):
        book.run(trial, 0.5 * width, config={"width": width, "lr": width / 10})

    (panel,) = results_of(book).plot.parallel().panels

    named = {x: [(y, text) for at, y, text in panel.texts if at == x] for x in (0.0, 1.0)}
    assert named[0.0] == [(0.0, "2"), (pytest.approx(0.4), "4"), (1.0, "7")]
    assert named[1.0] == [(0.0, "0.2"), (pytest.approx(0.5), "0.45"), (1.0, "0.7")]


def test_compared_trials_have_the_same_colours_in_each_picture(book: Book):
    for trial, loss in (("0001", 3.0), ("0002", 1.0), ("0003", 2.0)):
        book.run(trial, loss, config={"lr": loss})
    plot = results_of(book).plot

    drawn = [plot.curves(apart=True), plot.parallel(apart=True)]

    curves, parallel = ({each.name: each.look.color for each in picture.panels[0].series} for picture in drawn)
    assert curves == parallel
    assert len(set(curves.values())) == 3


def test_panels_leave_as_much_free_between_them_however_many_they_are(book: Book):
    config = dict.fromkeys("abcd", 0.1)
    for number in range(1, 4):
        book.run(f"{number:04}", 1 / number, config={name: value * number for name, value in config.items()})

    def layout(columns: int) -> dict[str, Any]:
        found: dict[str, Any] = by_plotly.plain(replace(results_of(book).plot.slices(), most_columns=columns))["layout"]
        return found

    two, four, one = layout(2), layout(4), layout(1)
    beside = [each["xaxis2"]["domain"][0] - each["xaxis"]["domain"][1] for each in (two, four)]
    below = [
        two["yaxis"]["domain"][0] - two["yaxis3"]["domain"][1],
        one["yaxis"]["domain"][0] - one["yaxis2"]["domain"][1],
    ]
    assert beside[0] * 2 == pytest.approx(beside[1] * 4)
    assert below[0] * 2 == pytest.approx(below[1] * 4)


def test_the_timeline_has_a_row_for_each_slot_and_the_end_of_each_attempt(book: Book):
    for trial in ("0001", "0002"):
        book.stage(trial)
    book.end("0001", AttemptEnd.FAILED, error_type="ValueError", error="bad")
    book.stage("0003")
    book.end("0002", AttemptEnd.PAUSED)

    picture = results_of(book).plot.timeline()

    # Entries are a second apart, the experiment is the first, and each attempt is staged before it starts.
    gap = 6 / 800
    rows = points(picture)
    assert [name for _, name in picture.panels[0].y.ticks] == ["w1@host · 1", "w1@host · 2"]
    assert rows["attempt failed"] == [(2, 0), (pytest.approx(5 - gap), 0)]
    assert rows["attempt paused"] == [(4, 1), (pytest.approx(8 - gap), 1)]
    assert rows["attempt running"] == [(7, 0), (pytest.approx(8 - gap), 0)]
    assert rows[""] == [(5, 0)]


def test_an_attempt_has_the_first_slot_of_its_worker_that_is_free():
    def run(begin: float, end: float, worker: str = "w1") -> Run:
        return Run(TrialId("0001"), Attempt(1, begin, worker=worker), begin, end)

    # The fourth begins while the end of the first is being written.
    found = slots([run(0, 10.01), run(0, 20), run(5, 30, "w2"), run(10, 30), run(15, 16), run(20, 21)])

    assert [(slot.worker, slot.number) for slot in found] == [
        ("w1", 0),
        ("w1", 1),
        ("w2", 0),
        ("w1", 0),
        ("w1", 2),
        ("w1", 1),
    ]


def test_the_front_is_told_from_the_others(experiments: dict[str, Results]):
    results = experiments["several"]

    found = points(results.plot.pareto())

    front = {(result.values["loss"], result.values["size"]) for result in results.pareto_front}
    assert {*found["Pareto front"]} == front
    assert len(found["completed"]) == len(results) - len(front)
    with pytest.raises(NothingToDraw, match="one metric, 'loss'"):
        experiments["pbt"].plot.pareto()


# Few, odd and many.


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


@pytest.mark.parametrize("others", [(), (NAN,), (INF, NAN)])
def test_a_history_of_abandoned_trials_and_of_values_that_are_no_numbers_says_so(book: Book, others: tuple[float, ...]):
    book.stage("0001")
    book.report("0001", {"loss": 0.5, "epoch": 1})
    book.decide("0001", "abandon")
    book.end("0001", AttemptEnd.STOPPED)
    if others:
        book.run("0002", *others)

    with pytest.raises(NothingToDraw, match=r"no trial of trials-of-mine has a number for 'loss', but those"):
        results_of(book).plot.history()


def test_an_experiment_without_a_metric_says_so(tmp_path: Path):
    book = Book(tmp_path / "open", metric="", accept_no_report=True)
    book.run("0001", 1.0)
    plot = results_of(book).plot

    for kind in ("history", "slices", "pareto"):
        with pytest.raises(NothingToDraw, match="it has no metric"):
            plot.draw(kind)
    assert "attempts: 1, slots: 1" in plot.timeline().note


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"importances", "lineage", "pareto"}))
def test_one_trial_is_drawn(book: Book, kind: str, tmp_path: Path):
    book.run("0001", -1e300, INF, 1e300, config={"lr": 0.1, "layers": [3, 4], "name": EVIL, EVIL: True, "none": None})

    picture = results_of(book).plot.draw(kind)

    picture.save(tmp_path / "picture.svg")
    assert "<script>" not in json.dumps(by_plotly.plain(picture))


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
        # Plotly takes some markup in its texts for what it is in HTML.
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


# What there is to draw with.


def test_names_that_say_nothing_are_refused_and_without_a_library_the_error_says_what_to_install(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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


@pytest.mark.parametrize("missing", ["optuna", "sklearn.ensemble"])
def test_importances_without_their_library_say_what_to_install(book: Book, missing: str):
    for number in range(1, 6):
        book.run(f"{number}", float(number), config={"lr": number})
    # In a process of its own: what has been imported here has found it.
    code = (
        f"import sys; sys.modules[{missing!r}] = None;"
        f"from mqtune import Results; Results.load({str(book.save())!r}).plot.importances()"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert re.search(r"ConfigurationError: .*pip install .*\[(optuna|plot)\]'", done.stderr)
