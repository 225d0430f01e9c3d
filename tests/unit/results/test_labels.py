"""Tags and notes: given to trials and experiments, journaled, shown, and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from book import Book
from click.testing import CliRunner
from simulation import tuner_on

import mqtune
from mqtune import Results
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, NameTaken
from mqtune.core.events import START, DriverStarted, Labelled
from mqtune.core.labels import Labels
from mqtune.core.trial import TrialStatus
from mqtune.journal import Entry, JournalFile

ONE, TWO = "0001", "0002"


def test_a_trial_is_added_with_labels_and_found_by_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, max_trials=1)
    bench.hand.add({"lr": 0.1}, tags=["baseline", "v2"], notes="As in the paper")
    bench.hand.add({"lr": 0.2}, tags=["v2"])
    bench.step()

    results = bench.hand.results()

    assert [result.id for result in results.find("v2")] == ["0001", "0002"]
    assert [result.id for result in results.find("v2", "baseline")] == ["0001"]
    assert [result.id for result in results.find(notes="the PAPER")] == ["0001"]
    assert results.find("v3") == []
    assert (results["0001"].tags, results["0001"].notes) == (("baseline", "v2"), "As in the paper")
    assert [trial.labels for trial in bench.replayed().trials.values()] == [t.trial.labels for t in results]


def test_labels_are_changed_at_any_time_and_what_is_left_out_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step().start(ONE)
    bench.report(ONE, 0.5)
    bench.end(ONE)
    assert bench.trial(ONE).status is TrialStatus.COMPLETED

    bench.hand.trial(ONE).annotate(tags=["good"], notes="look at its curve")
    bench.hand.trial(ONE).annotate(tags=["best"])
    bench.hand.trial(ONE).annotate(tags=["best"])
    bench.hand.annotate(tags=["paper"])
    bench.hand.annotate(notes="for section 3")

    assert bench.trial(ONE).labels == Labels(("best",), "look at its curve")
    assert len(bench.of(Labelled)) == 4, "what is there already is not journaled again"
    heir = bench.replayed()
    assert heir.trials[bench.trial(ONE).id].labels == bench.trial(ONE).labels
    assert heir.labels == Labels(("paper",), "for section 3")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"tags": "baseline"}, "tags='baseline' is not a list of names"),
        ({"tags": ["a\nb"]}, "is not a tag"),
        ({"tags": ["x" * 101]}, "is not a tag"),
        ({"tags": [3]}, "3 is not a tag"),
        ({"tags": [str(number) for number in range(101)]}, "there are 101 tags"),
        ({"notes": 5}, "notes=5 is not text"),
        ({"notes": "x" * 10_001}, "10,001 characters"),
    ],
)
def test_what_is_no_label_is_refused(tmp_path: Path, labels: dict[str, Any], message: str) -> None:
    bench = Bench(tmp_path).step()
    before = len(bench.events())
    calls = (
        lambda: bench.hand.add({}, **labels),
        lambda: bench.hand.trial(ONE).annotate(**labels),
        lambda: bench.hand.annotate(**labels),
        lambda: Bench(tmp_path / "other", **labels),
    )
    for call in calls:
        with pytest.raises(ConfigurationError, match=message):
            call()

    assert len(bench.events()) == before


def reports(config: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    return [(1.0, {"loss": config["lr"]})]


def tuner_of(name: str, simulated: mqtune.Simulated, **options: Any) -> mqtune.Tuner:
    space, run = {"lr": mqtune.uniform(0, 1)}, mqtune.RunOptions(**options)
    return tuner_on(simulated, reports, space, max_trials=2, name=name, seed=1, run=run)


def run(name: str, **options: Any) -> None:
    tuner = tuner_of(name, mqtune.Simulated(reports), **options)
    tuner.add({"lr": 0.5}, tags=["baseline"], notes="as in the paper")
    tuner.run()


def said(*arguments: str) -> str:
    """Return what a command prints; its error is raised."""
    environment = {"COLUMNS": "140", "MQTUNE_BROKER": ""}
    result = CliRunner().invoke(group, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_labels_are_shown_listed_exported_and_searched(mqtune_home: Path) -> None:
    run("first", tags=["paper", "resnet"], notes="Figure 3")
    run("second")

    results = Results.load("first")
    assert (results.tags, results.notes) == (("paper", "resnet"), "Figure 3")
    assert results.summary()["tags"] == ["paper", "resnet"]
    assert '"[""baseline""]"' in results.csv()
    shown = said("show", "first")
    assert "tags: paper, resnet" in shown
    assert "notes: Figure 3" in shown
    assert "baseline" in shown
    found = said("show", "first", "--tag", "baseline", "--notes", "PAPER")
    assert found.count("completed") == 2, "one in the counts, one in the table"
    assert "no trial matches" in said("show", "first", "--tag", "nothing")
    one = said("show", "first", "1")
    assert "tags: baseline" in one
    assert "notes: as in the paper" in one
    listed = said("list")
    assert "paper, resnet" in listed
    assert "second" in listed
    assert "second" not in said("list", "--tag", "paper", "--tag", "resnet")
    assert "first" in said("list", "--notes", "figure")
    assert "no experiment in" in said("list", "--tag", "nothing")


def test_what_is_in_a_folder_alone_is_labelled_there(mqtune_home: Path, tmp_path: Path) -> None:
    run("simulated")
    (tmp_path / "table.csv").write_text("lr,loss\n0.1,0.5\n0.2,0.4\n")
    said("import", str(tmp_path / "table.csv"), "--metric", "loss", "--mode", "min", "--name", "imported")
    book = Book(mqtune_home / "archived")
    book.run("0001", 0.5)
    book.finish()
    book.save()
    (mqtune_home / "archived" / "archived").touch()
    for name in ("simulated", "imported", "archived"):
        before = len(list(JournalFile(mqtune_home / name / "journal.msgpack").read()))

        assert said("label", name, "--tag", "paper", "--tag", "old") == f"{name} has new labels\n"
        said("label", name, "--untag", "old")
        best = Results.load(name).best.id
        both = dict.fromkeys(("0001", best))
        told = said("label", name, "1", "best", "--tag", "odd", "--tag", "late", "--note", "diverges")
        assert told.splitlines() == [f"trial {id_} has new labels" for id_ in both]
        said("label", name, "1", "--untag", "odd", "--notes", "")
        said("label", name, "--note", "for section 3")

        results = Results.load(name)
        assert (results.tags, results.notes) == (("paper",), "for section 3")
        first = results["0001"]
        assert ("odd" in first.tags, "late" in first.tags, first.notes) == (False, True, "")
        assert len(both) == 1 or {"odd", "late"} <= {*results.best.tags}
        assert len(list(JournalFile(mqtune_home / name / "journal.msgpack").read())) == before + 4 + len(both)
        assert name in said("list", "--tag", "paper")


def test_labels_that_can_not_be_and_a_folder_that_is_written_are_refused(mqtune_home: Path) -> None:
    run("simulated")
    copy = JournalFile(mqtune_home / "simulated" / "journal.msgpack")
    before = list(copy.read())

    for words in (
        ["label", "simulated", "--note", "x" * 10_001],
        ["label", "simulated", "--tag", "a\nb"],
        ["label", "simulated", "9", "--tag", "a"],
    ):
        with pytest.raises(ConfigurationError):
            said(*words)
    list(copy.go_on())
    with pytest.raises(NameTaken, match="another process writes to the folder"):
        said("label", "simulated", "--tag", "a")
    copy.close()

    assert list(copy.read()) == before


def test_an_experiment_of_a_broker_is_labelled_there_alone(mqtune_home: Path) -> None:
    driven = DriverStarted(driver="process 7 on head", version="0.2.0", at=1.0, cursor=START)
    Book(mqtune_home / "theirs").save()
    copy = JournalFile(mqtune_home / "theirs" / "journal.msgpack")
    list(copy.go_on())
    copy.append([Entry("9999999999999-0", driven.encode())])
    copy.close()

    with pytest.raises(ConfigurationError, match="give its broker"):
        said("label", "theirs", "--tag", "a")


def test_running_again_keeps_labels_that_are_left_out_and_takes_new_ones(mqtune_home: Path) -> None:
    simulated = mqtune.Simulated(reports, keep_journal=True)

    def again(**labels: Any) -> Labels:
        return tuner_of("again", simulated, **labels).run().experiment.labels

    assert again(tags=["a"], notes="n") == Labels(("a",), "n")
    assert again() == Labels(("a",), "n")
    assert again(tags=["b"]) == Labels(("b",), "n")
    assert again(tags=[], notes="") == Labels()
