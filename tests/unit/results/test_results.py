from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from book import ASHA, Book
from notebook_view import shown

import mqtune
from mqtune import Results
from mqtune.core.errors import ConfigurationError, MetricMissing, MqtuneError, TrialFailed
from mqtune.core.text import text_of_cell
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.journal import JOURNAL_FILE
from mqtune.results import csv_text

NAN, INF = math.nan, math.inf


def results_of(book: Book) -> Results:
    return Results.load(book.save())


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "trials-of-mine")


def fail(book: Book, *metrics: dict[str, Any]) -> Results:
    """Have a trial report this and fail, and return the results."""
    book.stage("0001")
    book.report("0001", *metrics)
    book.end("0001", AttemptEnd.FAILED, error_type="ValueError", error="ValueError: no")
    return results_of(book)


def test_an_array_has_a_value_for_each_trial_or_for_each_of_its_reports(book: Book):
    book.run("0001", 3.0, 2.0, 4.0, config={"lr": 0.1, "net": {"width": 8, "kind": "a"}})
    book.run("0002", 5.0, config={"lr": 0.2, "net": {"width": 16, "kind": "b"}})
    book.run("0003", config={"lr": 0.3})

    results = results_of(book)

    np.testing.assert_array_equal(results.array("loss"), [2.0, 5.0, NAN])
    np.testing.assert_array_equal(results.array("epoch"), [2.0, 1.0, NAN])
    np.testing.assert_array_equal(results.array("lr"), [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(results.array("net.width"), [8.0, 16.0, NAN])
    np.testing.assert_array_equal(results.array("net.kind"), [NAN] * 3)
    np.testing.assert_array_equal(results.array("loss", "0001"), [3.0, 2.0, 4.0])
    assert results.array("loss", "0003").shape == (0,)
    assert results.array("nothing").dtype == np.float64
    with pytest.raises(KeyError):
        results.array("loss", "0009")


@pytest.mark.parametrize(("time_attr", "unit"), [("training_iteration", "iterations"), ("epoch", "epochs")])
def test_a_budget_prints_what_it_counts(tmp_path: Path, time_attr: str, unit: str):
    book = Book(tmp_path / "saving", scheduler={**ASHA, "max_t": 1_000, "time_attr": time_attr})
    book.run("0001", 3.0)
    book.stage("0002")
    book.report("0002", {"loss": 5.0, "epoch": 1})
    book.decide("0002")
    book.end("0002", AttemptEnd.STOPPED)

    results = results_of(book)

    assert str(results.budget) == f"2 of 1,001 {unit}"
    assert results.summary()["budget"] == {"used": 2, "saved": 999}


@pytest.mark.parametrize(("mode", "sign"), [("min", 1.0), ("max", -1.0)])
def test_each_scope_may_have_another_best_trial(tmp_path: Path, mode: str, sign: float):
    book = Book(tmp_path / "either", mode=mode)
    # NaN is never best, and of equal trials the first one is.
    for number, losses in enumerate([(NAN,), (1.0, 9.0, 9.0), (9.0, 9.0, 2.0), (4.0,) * 3, (4.0,) * 3, (NAN, NAN)]):
        book.run(f"{number:04}", *(sign * loss for loss in losses))

    results = results_of(book)

    assert [results.best_trial(scope).id for scope in ("all", "last", "avg")] == ["0001", "0002", "0003"]
    assert [results.best_trial(scope).value for scope in ("all", "last", "avg")] == [sign, sign * 2.0, sign * 4.0]
    assert results.best.id == "0001"


@pytest.mark.parametrize("last", [{"loss": NAN}, {"time": 3}])
def test_a_trial_whose_last_report_has_no_number_has_no_last_value(book: Book, last: dict[str, Any]):
    book.stage("0001")
    book.report("0001", {"loss": 1.0}, last)
    book.end("0001")
    book.run("0002", 5.0)

    results = results_of(book)

    assert [results.best_trial(scope).id for scope in ("all", "last", "avg")] == ["0001", "0002", "0001"]
    assert results.best_trial("avg").value == 1.0


def test_without_a_report_there_is_no_best_trial_nor_any_result_and_failures_are_pointed_at(book: Book):
    results = fail(book)

    with pytest.raises(MetricMissing, match=r"not reported, and 1 failed, the first, 0001: ValueError: no"):
        _ = results.best
    with pytest.raises(TrialFailed, match=r"1 of 1 trials failed, .* 0001: ValueError: no; all .*errors.txt"):
        results.raise_if_failed()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"accuracy": 0.5, "epoch": 1}, "no report has 'loss'; reports have 'accuracy', 'epoch'"),
        ({"loss": NAN}, "each value of 'loss' is NaN"),
    ],
)
def test_without_a_number_the_error_names_what_was_reported(book: Book, metrics: dict[str, Any], message: str):
    book.stage("0001")
    book.report("0001", metrics)

    with pytest.raises(MetricMissing, match=message):
        _ = results_of(book).best


def test_a_best_trial_that_has_failed_is_warned_of_once_and_marked(book: Book, caplog: pytest.LogCaptureFixture):
    results = fail(book, {"loss": 1.0})

    with pytest.raises(TrialFailed, match=r"has only failed trials: 1 of 1 trials failed, the first, 0001: ValueError"):
        results.raise_if_failed()
    assert results.best.status is results.best.status is TrialStatus.FAILED
    assert [record.message for record in caplog.records] == [
        "the best trial 0001 has FAILED after it reported its value: ValueError: no"
    ]
    assert results.summary()["best"]["status"] == "failed"


def test_trials_are_found_in_order_by_number_and_by_id(book: Book):
    for trial in ("0001", "0002", "0003"):
        book.run(trial, 1.0)

    results = results_of(book)

    assert len(results) == 3
    assert [result.id for result in results] == [result.id for result in results.trials] == ["0001", "0002", "0003"]
    assert results["0002"].id == "0002"
    with pytest.raises(KeyError):
        results["0004"]


def test_reports_that_a_running_tuner_has_not_folded_yet_are_left_out(book: Book):
    book.stage("0001")
    book.report("0001", {"loss": 3.0})
    folded = results_of(book).experiment
    book.report("0001", {"loss": 2.0})
    book.run("0002", 5.0)
    folder = book.save()

    results = Results(folded, folder)

    assert [(r.trial, r.sequence, r.late) for r in results.reports()] == [("0001", 1, False)]


def test_a_finished_experiment_is_loaded_by_its_name(mqtune_home: Path):
    book = Book(mqtune_home / "mine")
    book.run("0001", 1.0)
    book.finish()
    book.save()

    results = Results.load("mine")

    assert (results.name, results.outcome, results.best.value) == ("mine", "finished", 1.0)
    assert results.definition["max_trials"] == 4
    Book(mqtune_home / "train-12").save()
    with pytest.raises(ConfigurationError, match=r"'trian' in .*; do you mean train-12\?$"):
        Results.load("trian")
    with pytest.raises(ConfigurationError, match="mqtune list shows"):
        Results.load("something-else")


def test_a_journal_that_was_cut_by_a_crash_is_read_up_to_there(book: Book):
    book.run("0001", 1.0)
    path = book.save() / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:-3])

    assert Results.load(book.folder)["0001"].status is TrialStatus.RUNNING


def test_an_empty_journal_is_no_experiment_yet(tmp_path: Path):
    (tmp_path / JOURNAL_FILE).touch()

    with pytest.raises(ConfigurationError, match="holds no experiment yet"):
        Results.load(tmp_path)


def test_no_text_in_a_csv_is_a_formula_and_who_reads_it_has_it_as_it_was():
    formulas = ["=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "-2+3", "\t=1", "'=kept"]
    texts = [*formulas, "-7", "'quoted", "plain", "1e-3"]

    header, *lines = csv.reader(csv_text([{"=name": each, "loss": -1.5} for each in texts]).splitlines())

    assert header == ["'=name", "loss"]
    assert [cell for cell, _ in lines] == [*(f"'{each}" for each in formulas), *texts[len(formulas) :]]
    assert {number for _, number in lines} == {"-1.5"}
    assert [text_of_cell(cell) for cell, _ in lines] == texts


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(book: Book, monkeypatch: pytest.MonkeyPatch):
    book.run("0001", 1.0, 2.0)
    results = results_of(book)
    path = book.folder / "reports.jsonl"
    results.to_jsonl(path)
    before = path.read_text()

    def broken():
        yield "half"
        raise OSError("disk full")

    monkeypatch.setattr(results, "jsonl", broken)
    with pytest.raises(OSError, match="disk full"):
        results.to_jsonl(path)

    assert path.read_text() == before
    assert [*book.folder.glob("*.new")] == []


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame of any library, without nulls."""
    rows = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    return [{k: v for k, v in row.items() if v is not None and v == v} for row in rows]  # noqa: PLR0124


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_dataframe_may_have_a_row_for_each_report_or_attempt(book: Book, library: Any):
    pytest.importorskip(library)
    book.stage("0001", {"lr": 0.3})
    book.report("0001", {"loss": 3.0}, {"loss": 2.0, "deep": {"er": True}})
    book.decide("0001", reason="not among the best")
    book.report("0001", {"loss": 1.0})
    book.end("0001", AttemptEnd.STOPPED)
    book.stage("0002", start=False)
    results = results_of(book)

    reports, attempts = (rows_of(results.dataframe(each, library=library)) for each in ("reports", "attempts"))

    rows = [(each["metrics.loss"], each["late"], each["sequence"]) for each in reports]
    assert rows == [(3.0, False, 1), (2.0, False, 2), (1.0, True, 3)]
    assert reports[1]["metrics.deep.er"]
    first, second = attempts
    assert (first["end"], first["reason"], first["config.lr"]) == ("stopped", "not among the best", 0.3)
    assert not {"started_at", "end", "signal"} & {*second}


def test_unknown_rows_and_libraries_are_refused(book: Book, monkeypatch: pytest.MonkeyPatch):
    book.run("0001", 1.0)
    results = results_of(book)

    with pytest.raises(ConfigurationError, match="attempts"):
        results.dataframe("epochs")
    with pytest.raises(ConfigurationError, match="polars"):
        results.dataframe(library="numpy")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MqtuneError, match="pip install pandas"):
        results.dataframe()


def test_a_notebook_shows_results_and_trials_and_nothing_in_them_is_markup(tmp_path: Path):
    evil = "<script>alert(1)</script>&[bold]"
    book = Book(tmp_path / "mine", metric=evil)
    book.stage("0001", {evil: evil, "lr": 0.25})
    book.report("0001", {evil: 0.5})
    book.end("0001", AttemptEnd.FAILED, error_type="ValueError", error=f"ValueError: {evil}")
    for number in range(2, 14):
        book.stage(f"{number:04}")
    results = results_of(book)

    table, trial = shown(results, "html"), shown(results["0001"], "html")

    assert "mine · 13 trials: 12 running, 1 failed" in table
    assert "and 3 more" in table
    assert "failed" in trial
    assert "lr = 0.25" in trial
    for text in (table, trial):
        assert "<script" not in text
        assert "&lt;script&gt;alert(1)&lt;/script" in text
    assert "0 trials" in shown(results_of(Book(tmp_path / "none")), "html")


@pytest.mark.parametrize(("stops", "saved"), [(True, 99), (False, 0)])
def test_nothing_is_saved_if_trials_run_on_behind_the_schedulers_last_step(stops: bool, saved: int):
    # The second trial is stopped at its first report.
    def curve(config: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        return [(1.0, {"loss": config["x"]}) for _ in range(3)]

    results = mqtune.Tuner(
        never_called,
        {"x": mqtune.grid_search([1, 2])},
        metric="loss",
        mode="min",
        scheduler=mqtune.ASHA(100, stop_last_trials=stops),
        backend=mqtune.Simulated(curve, slots=1),
        run=mqtune.RunOptions(progress=False),
    ).run()

    assert results.budget[:2] == (4, saved)


def never_called(config: dict[str, Any]) -> None:
    """Stands for the trainable, whose reports the simulation makes."""
