"""Pictures: what is in them, that both libraries draw them, and what they make of odd, few and many trials."""

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
from mqtune import Results
from mqtune.core.errors import ConfigurationError, NothingToDraw
from mqtune.core.trial import Attempt, TrialId
from mqtune.core.version import install_command
from mqtune.results import KINDS, MOST_POINTS, TimelineBar, slots
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
