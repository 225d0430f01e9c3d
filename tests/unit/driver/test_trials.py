"""Calls of a user for single trials: each is checked first, and then carried out."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import NAME, Bench

from mqtune import (
    FIFO,
    Checkpoint,
    GridSearcher,
    InitialPoints,
    RandomSearcher,
    Results,
    Space,
    Trainable,
    choice,
    grid_search,
    randint,
    uniform,
)
from mqtune.checkpoints import encode_dict, open_store
from mqtune.core.codec import REPORTS_PREFIX, encode_value
from mqtune.core.errors import CheckpointGone, ConfigurationError, ImpossibleEvent, InvalidTransition, NothingResumes
from mqtune.core.events import AttemptEnded, AttemptStarted, DecisionTaken
from mqtune.core.trial import (
    Action,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Decision,
    Intent,
    Trial,
    TrialId,
    TrialStatus,
    trial_of,
)
from mqtune.driver import AnswerQuestion, Requeue, Retention
from mqtune.journal import JOURNAL_FILE, JournalFile, made_mark, output_path
from mqtune.results import Fold, FolderSource, Followed, Snapshot
from mqtune.schedulers import Resume, Wait

ONE, TWO, THREE = "0001", "0002", "0003"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two slots, each with a trial that a worker runs."""
    return Bench(tmp_path).step().start(ONE).start(TWO)


def as_known(bench: Bench) -> tuple[str, str]:
    """Return the trials as the living driver knows them, and as its heir would."""
    return tuple(repr((e.trials, e.counts, e.to_retry, e.to_restart)) for e in (bench.experiment, bench.replayed()))  # type: ignore[return-value]


def assert_comes_back(bench: Bench) -> None:
    """The journal has everything that the driver knows."""
    living, heir = as_known(bench)
    assert heir == living


@pytest.fixture
def stored(tmp_path: Path) -> Bench:
    """Two running trials, and a store that keeps all their folders."""
    store = open_store(str(tmp_path / "store"))
    store.create()
    bench = Bench(tmp_path, store=store, retention=Retention(keep_last=None), max_trials=2)
    return bench.step().start(ONE).start(TWO)


def saved_folders(bench: Bench, trial: str, *losses: float) -> list[CheckpointId]:
    """Report these losses, each with a checkpoint that is a folder."""
    names = [bench.new_checkpoint(trial, in_memory=False) for _ in losses]
    for name, loss in zip(names, losses, strict=True):
        bench.report(trial, loss, checkpoint=name)
    return names


def model_folder(folder: Path, weights: str = "weights") -> Path:
    folder.mkdir()
    (folder / "model").write_text(weights)
    return folder


def begin_with(bench: Bench, call: str, given: Any) -> Trial:
    """Have a new, paused or running trial begin with a checkpoint."""
    if call == "add":
        return bench.hand.add({"lr": 0.25}, checkpoint=given)
    if call == "resume":
        bench.hand.trial(ONE).pause()
        bench.end(ONE)
        bench.hand.trial(ONE).resume(checkpoint=given)
    else:
        bench.hand.trial(ONE).restart(checkpoint=given)
        bench.end(ONE)
    return bench.trial()


@pytest.mark.parametrize("call", ["add", "resume", "restart"])
def test_a_trial_begins_with_the_checkpoint_that_is_chosen(stored: Bench, tmp_path: Path, call: str) -> None:
    first, best, newest = saved_folders(stored, ONE, 3.0, 1.0, 2.0)
    (other,) = saved_folders(stored, TWO, 5.0)
    folder = model_folder(tmp_path / "model")
    for given, name in (("best", best), (newest, newest), (first, first), (other, other), (folder, None)):
        trial = begin_with(stored, call, given)

        attempt, made_here = trial.attempt, call == "add" and name is None
        assert attempt.checkpoint == (name or attempt.checkpoint)
        source = trial_of(attempt.checkpoint)
        assert attempt.source == (None if source == trial.id else source)
        assert trial.parent == (source if call == "add" and name else None)
        if name is None:
            assert (trial.status, source, trial.checkpoint) == (TrialStatus.QUEUED, trial.id, attempt.checkpoint)
            assert trial.checkpoint in trial.checkpoints
            assert open_store(stored.store.url).fetch(trial.checkpoint, tmp_path / "fetched") == {}
            assert (tmp_path / "fetched" / "model").read_text() == "weights"
            assert not made_here or len(trial.checkpoints) == 1
        assert_comes_back(stored)
        if call != "add":
            stored.start(ONE)


def test_a_checkpoint_of_another_experiment_brings_its_counters(stored: Bench, tmp_path: Path) -> None:
    other = open_store(str(tmp_path / "other"))
    other.create()
    other.save(CheckpointId("p-0007-1-3"), model_folder(tmp_path / "model"), {"training_iteration": 12})
    counters = other.fetch(CheckpointId("p-0007-1-3"), tmp_path / "gotten")

    for given in (
        tmp_path / "other" / "p-0007-1-3",
        Checkpoint(id="p-0007-1-3", path=tmp_path / "gotten", counters=counters),
    ):
        trial = stored.hand.add({"lr": 0.25}, checkpoint=given)

        target = tmp_path / trial.id
        assert open_store(stored.store.url).fetch(trial.checkpoint, target) == {"training_iteration": 12}
        assert [path.name for path in target.iterdir()] == ["model"]


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(stored: Bench) -> None:
    (name,) = saved_folders(stored, ONE, 3.0)
    for wrong, says in (
        ({"checkpoint": "p-0001-1-9"}, f"checkpoint 'p-0001-1-9' does not exist, .*trial 0001 has {name}"),
        ({"checkpoint": "p-0002-1-1"}, "trial 0002 has none"),
        ({"checkpoint": "p-0099-1-1"}, "checkpoint 'p-0099-1-1' does not exist"),
        ({"checkpoint": "/no/such/folder"}, "/no/such/folder.* is neither a folder on this machine"),
        ({"checkpoint": "/no/such/folder", "source": ONE}, "source"),
        ({"checkpoint": name, "source": TWO}, "belongs to trial 0001, not to trial 0002"),
        ({"checkpoint": "best", "source": TWO}, "trial 0002 has no checkpoint"),
        ({"checkpoint": 3}, "checkpoint=3"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            stored.hand.add({"lr": 0.25}, **wrong)  # type: ignore[arg-type]
    assert len(stored.experiment.trials) == 2


def test_a_trial_that_can_not_be_restarted_brings_nothing_into_the_store(stored: Bench, tmp_path: Path) -> None:
    stored.report(ONE, 1.0)
    stored.end(ONE)

    with pytest.raises(InvalidTransition):
        stored.hand.trial(ONE).restart(checkpoint=model_folder(tmp_path / "model"))
    with pytest.raises(InvalidTransition):
        stored.hand.trial(TWO).resume(checkpoint=tmp_path / "model")

    assert open_store(stored.store.url).ids() == []
    with pytest.raises(ConfigurationError, match=r"has no store.*Checkpoints\("):
        Bench(tmp_path / "none").hand.add({}, checkpoint=tmp_path / "model")


@pytest.mark.parametrize(
    ("status", "calls"),
    [
        ("COMPLETED", "stop complete fail abandon pause resume restart save"),
        ("PAUSED", "complete pause save"),
        ("RUNNING", "resume"),
        ("QUEUED", "save"),
    ],
)
def test_what_a_trial_in_this_status_can_not_do_does_nothing(bench: Bench, status: str, calls: str) -> None:
    trial = bench.hand.add({}).id if status == "QUEUED" else ONE
    if status == "COMPLETED":
        bench.report(ONE, 1.0)
    if status == "PAUSED":
        bench.hand.trial(ONE).pause()
    if status in ("COMPLETED", "PAUSED"):
        bench.end(ONE)
    before, published = as_known(bench), list(bench.backend.published)
    events = len(bench.events())

    for call in calls.split():
        with pytest.raises(InvalidTransition, match=f"{trial} is {status}"):
            getattr(bench.hand.trial(trial), call)()
        assert (as_known(bench), bench.backend.published, len(bench.events())) == (before, published, events)


def test_a_driver_says_which_trial_pauses_before_it_runs_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=1, max_failures=-1, max_trials=1).step()
    for attempt in (1, 2, 3):
        assert bench.trial().attempt.number == attempt
        bench.start(ONE).fail(ONE)
        # The first retry waits for nothing, the second for 0.1 s.
        bench.clock.now += 0.1 * (attempt > 1)
        bench.step(2)

    why = "trial 0001 waits: its last 3 attempts ended before they got anywhere, so it runs again only 0.2 s after the last one"
    assert (bench.trial().attempt.number, bench.driver.waiting_for) == (3, why)
    assert not bench.driver.is_finished
    assert_comes_back(bench)
    bench.begin()
    bench.clock.now += 0.05
    bench.step()
    assert len(bench.trial().attempts) == 3
    bench.clock.now += 0.05
    bench.step()

    assert bench.trial().attempt.number == 4
    assert bench.driver.waiting_for == ""


NESTED = Space({"model": {"width": randint(1, 1000), "body": {"depth": randint(1, 1000)}}, "lr": uniform(0, 1)})


def test_a_part_of_a_nested_config_changes_that_part_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, space=NESTED, searcher=lambda: RandomSearcher(NESTED, 1)).step().start(ONE)
    before = bench.trial().config
    bench.hand.trial(ONE).pause()
    bench.end(ONE)

    bench.hand.trial(ONE).resume({"model": {"body": {"depth": 7}}})

    assert bench.trial().config == {**before, "model": {"width": before["model"]["width"], "body": {"depth": 7}}}
    assert_comes_back(bench)


def test_a_trial_that_gives_way_is_told_once_to_hurry_when_its_driver_goes_and_not_the_other_way(bench: Bench) -> None:
    for intent in (Intent.GIVE_WAY, Intent.GIVE_WAY, Intent.HAND_BACK, Intent.HAND_BACK, Intent.GIVE_WAY):
        bench.driver.carry_out(Requeue(bench.trial(), "others wait", intent))

    assert [event.intent for event in bench.of(DecisionTaken)] == [Intent.GIVE_WAY, Intent.HAND_BACK]
    assert bench.told(ONE) == "hand_back"
    assert_comes_back(bench)


@pytest.mark.parametrize(
    ("paused", "says"),
    [
        ((), r"^no trial is paused, nothing runs, .*Obedient.*nobody is good enough"),
        ((ONE, TWO), r"2 trials are paused \(0001, 0002\).*Obedient.*nobody is good enough"),
    ],
)
def test_a_scheduler_that_resumes_nothing_is_an_error(tmp_path: Path, paused: tuple[str, ...], says: str) -> None:
    bench = Bench(tmp_path)
    if paused:
        bench.step().start(ONE).start(TWO)
        for trial in paused:
            bench.hand.trial(trial).pause()
        bench.end(ONE)
    bench.scheduler.choices.append(Wait("nobody is good enough"))

    with pytest.raises(NothingResumes, match=says):
        (bench.end(TWO) if paused else bench).step()


def test_each_failed_trial_is_told_once(bench: Bench) -> None:
    assert bench.hand.next_failed_trial() is None
    bench.report(ONE, 1.0)

    bench.fail(TWO)
    bench.fail(ONE)

    assert [bench.hand.next_failed_trial() for _ in range(3)] == [bench.trial(ONE), bench.trial(TWO), None]


def test_what_a_trial_printed_is_read_from_its_file_or_from_its_tail(bench: Bench, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    path = output_path(root, "x", ONE, 1, "stdout")
    path.parent.mkdir(parents=True)
    path.write_text("first\nsecond\n")
    attempt = bench.trial().attempt
    attempt.stdout_path, attempt.stderr_tail = str(path), "oh\nno"

    assert bench.hand.trial(ONE).stdout() == []
    attempt.log_mark = made_mark(root)
    assert bench.hand.trial(ONE).stdout() == ["first", "second"]
    assert bench.hand.trial(ONE).stdout(offset=6) == bench.hand.trial(ONE).stdout(offset=-7) == ["second"]
    assert bench.hand.trial(ONE).stderr() == ["oh", "no"]
    attempt.stdout_path = str(tmp_path / "gone")
    attempt.stdout_tail = "the end"
    assert bench.hand.trial(ONE).stdout() == ["the end"]
    with pytest.raises(ConfigurationError, match="trial 0001 has no attempt 2; it has 1 attempt"):
        bench.hand.trial(ONE).stdout(attempt=2)


def test_output_on_another_machine_is_asked_of_its_worker(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    attempt = bench.trial().attempt
    attempt.stdout_path, attempt.stdout_tail = "/there/0001/1.stdout", "the end"
    bench.backend.printed = b"first\nsecond\n" * 30_000

    assert bench.hand.trial(ONE).stdout() == ["first", "second"] * 30_000
    assert bench.hand.trial(ONE).stdout(offset=-7) == ["second"]
    assert bench.backend.asked[0] == (attempt.worker, ONE, 1, "stdout", 0)
    assert len(bench.backend.asked) == 3, "it comes in pieces"
    assert not caplog.records

    bench.backend.printed = None
    assert bench.hand.trial(ONE).stdout() == ["the end"]
    assert "only the end of its output can be read: worker w@a is not connected" in caplog.text


@pytest.mark.parametrize(
    "forged",
    [
        # None for the beginning of an attempt that has begun.
        None,
        AttemptEnded(trial=TrialId("9999"), attempt=1, end=AttemptEnd.COMPLETED, at=5.0).encode(),
        REPORTS_PREFIX + encode_value([["9999", 1, 1, [[5.0, {"loss": 1.0}]]]]),
    ],
)
def test_an_event_that_can_not_be_there_is_named_with_the_way_out(bench: Bench, forged: bytes | None) -> None:
    bench.journal.record(forged or bench.of(AttemptStarted)[0].encode())
    entry = bench.journal.read("0-0", count=1000)[-1].id
    reads: list[Callable[[], object]] = [
        lambda: bench.step(5),
        bench.begin,
        lambda: Results.load(bench.folder),
        lambda: Followed(FolderSource(bench.folder), "x", Fold, Snapshot(JournalFile(bench.folder / JOURNAL_FILE), 0)),
    ]

    for read in reads:
        with pytest.raises(ImpossibleEvent, match=r"(in an impossible place|which does not exist)") as caught:
            read()
        assert f"entry {entry} of the journal" in str(caught.value)
        assert f"XDEL 'mqtune:x:{{x}}:journal' {entry}" in str(caught.value)
        assert str(caught.value).count("XDEL") == 1


@pytest.mark.parametrize(
    "path",
    [
        "private/id_rsa",
        "logs/../private/id_rsa",
        "logs/x/../../private/id_rsa",
        "logs/x/0001/../0001/1.stdout",
        "logs/x/0002/1.stdout",
        "logs/other/0001/1.stdout",
        "logs/x/0001/2.stdout",
        "logs/x/0001/1.stderr",
        "linked/x/0001/1.stdout",
        "1.stdout",
        "",
    ],
)
@pytest.mark.parametrize("is_marked", [True, False])
def test_only_the_attempts_own_output_is_read(bench: Bench, tmp_path: Path, path: str, *, is_marked: bool) -> None:
    outputs = ("x/0001/2.stdout", "x/0001/1.stderr", "x/0002/1.stdout", "other/0001/1.stdout")
    for name in ("private/id_rsa", "private/1.stdout", "1.stdout", *(f"logs/{each}" for each in outputs)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    (tmp_path / "linked" / "x").mkdir(parents=True)
    (tmp_path / "linked" / "x" / "0001").symlink_to(tmp_path / "private")
    mark = made_mark(tmp_path / "logs")
    (tmp_path / "linked" / ".mqtune-logs").write_text(mark)
    attempt = bench.trial().attempt
    attempt.host, attempt.stdout_tail = socket.gethostname(), "the end"
    attempt.stdout_path = str(tmp_path / path) if path else ""
    attempt.log_mark = mark if is_marked else ""

    assert bench.hand.trial(ONE).stdout() == ["the end"]


class Doubler(Trainable):
    """Has a model that can be exported as text."""

    export_formats = ("text",)
    weight = 0

    def step(self) -> dict[str, Any]:
        return {"loss": 0.0}

    def save_checkpoint(self, folder: Path) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.weight = checkpoint.data["weight"]

    def export_model(self, format: str, folder: Path) -> None:
        (folder / "model.txt").write_text(f"{self.weight} {self.config['depth']}")


def save_dict(bench: Bench, data: dict[str, Any]) -> str:
    name = bench.new_checkpoint(ONE)
    bench.worker.put_checkpoint(bench.claims[ONE], name, encode_dict(data, {"training_iteration": 3}))
    bench.report(ONE, 1.0, checkpoint=name)
    return name


def test_the_best_or_newest_folder_is_copied_to_where_it_is_wanted(stored: Bench, tmp_path: Path) -> None:
    names = []
    for loss in (0.5, math.nan, 0.2, 0.2, 0.9):
        names.append(name := stored.new_checkpoint(ONE, in_memory=False))
        stored.store.save(name, model_folder(tmp_path / name, name), {"training_iteration": 3})
        stored.report(ONE, loss, checkpoint=name)
    trial = stored.hand.trial(ONE)

    for target in (None, tmp_path / "mine", None):
        checkpoint = trial.get_checkpoint(target=target)

        assert (checkpoint.id, (checkpoint.path / "model").read_text()) == (names[-1], names[-1])
        assert target is None or checkpoint.path == target
    assert trial.get_checkpoint("best").id == names[2]
    with pytest.raises(ConfigurationError, match="which='last' is neither 'newest' nor 'best'"):
        trial.get_checkpoint("last")  # type: ignore[arg-type]


def test_a_checkpoint_that_is_a_dict_is_read_back_with_its_counters_while_there_is_one(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="trial 0001 has no checkpoint; save one with"):
        bench.hand.trial(ONE).get_checkpoint()
    name = save_dict(bench, {"weight": 7})

    found = bench.hand.trial(ONE).get_checkpoint()

    assert (found.id, found.data, dict(found.counters)) == (name, {"weight": 7}, {"training_iteration": 3})
    bench.server.experiments[NAME].checkpoints.clear()
    with pytest.raises(CheckpointGone, match=f"checkpoint {name} is gone: it was a dict in Redis"):
        bench.hand.trial(ONE).get_checkpoint()


def test_a_model_is_exported_from_the_newest_checkpoint_by_its_class(tmp_path: Path) -> None:
    bench = Bench(tmp_path, tuned=Doubler).step().start(ONE)
    save_dict(bench, {"weight": 7})
    save_dict(bench, {"weight": 8})

    bench.hand.trial(ONE).export_model("text", tmp_path / "out")

    assert (tmp_path / "out" / "model.txt").read_text() == "8 3"
    with pytest.raises(ConfigurationError, match="Doubler can't be exported as 'onnx'; its export_formats: text"):
        bench.hand.trial(ONE).export_model("onnx", tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"is not a class; only a subclass of mqtune\.Trainable can"):
        Bench(tmp_path / "function").step().hand.trial(ONE).export_model("text", tmp_path / "out")


def test_a_config_that_is_too_large_is_refused_by_its_largest_value(tmp_path: Path) -> None:
    bench = Bench(tmp_path, space=None, scheduler=FIFO, max_trials=None)
    events = len(bench.events())

    with pytest.raises(ConfigurationError, match=r"trial 0001 has 2,\d{3},\d{3} bytes .* is 'text' with 2,"):
        bench.hand.add({"lr": 0.1, "text": "x" * 2 * 2**20})

    assert (len(bench.events()), bench.experiment.trials) == (events, {})


def test_a_scheduler_resumes_from_the_checkpoint_that_it_names_while_that_is_there(bench: Bench) -> None:
    donor = bench.save(TWO)
    bench.report(ONE, 1.0)
    bench.scheduler.decisions[ONE, 2] = Decision(Action.PAUSE, "exploit 0002", TWO)
    bench.report(ONE, 1.0)
    newest = bench.save(TWO)
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, donor))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (donor, TWO)

    bench.start(ONE)
    bench.hand.trial(ONE).pause()
    gone = CheckpointId("m-0002-1-99")
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, gone))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (newest, TWO)


def test_an_order_that_a_server_has_lost_in_an_outage_is_given_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lockstep=True).step().start(ONE)
    bench.report(ONE, 0.5)
    bench.step()
    state = bench.server.experiments[NAME].trials[TrialId(ONE)]
    given = dict(state.orders)
    state.orders.clear()

    bench.step()
    assert state.orders == {}
    bench.journal.outages += 1
    bench.step()

    assert state.orders == given != {}


def test_in_lockstep_an_answer_to_a_report_stays_when_that_is_decided_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lockstep=True).step().start(ONE)
    bench.driver.listen_to_reports(lambda _, report: bench.driver.carry_out(AnswerQuestion(report, "yes")))

    bench.report(ONE, 1.0)

    assert bench.told(ONE).startswith("go:1:")


GRID = Space({"depth": grid_search([1, 2, 3])})


def suggested_trial(config: Config | None) -> Trial:
    return Trial(TrialId(ONE), config or {}, attempts=[Attempt(1, 0.0, config or {})])


@pytest.mark.parametrize("space", [Space({"depth": choice([1, 2, 3])}), GRID])
def test_random_search_that_starts_over_suggests_no_abandoned_config_and_ends_without_others(space: Space) -> None:
    searcher = RandomSearcher(space, 3)
    first = searcher.suggest(ONE)
    assert first is not None

    searcher.on_abandon(suggested_trial(first))

    suggested = [searcher.suggest(ONE) for _ in range(20)]
    assert {config["depth"] for config in suggested if config} == {1, 2, 3} - {first["depth"]}
    for depth in (1, 2, 3):
        searcher.on_abandon(suggested_trial({"depth": depth}))
    assert searcher.suggest(ONE) is None


def test_points_and_grid_search_pass_over_what_was_abandoned_or_is_tried_anyway() -> None:
    searcher = InitialPoints([{"depth": 1}, {"depth": 1}], GridSearcher(GRID), space=GRID)
    searcher.avoid({"depth": 2})
    searcher.on_abandon(suggested_trial(searcher.suggest(ONE)))

    assert [searcher.suggest(ONE), searcher.suggest(ONE)] == [{"depth": 3}, None]
