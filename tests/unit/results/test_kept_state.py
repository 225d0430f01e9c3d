"""The state beside a copy: it is what reading the whole copy gives, or it is not used."""

from __future__ import annotations

import errno
import math
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from book import ASHA, Book

from mqtune import Results
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.entries import events_in_order
from mqtune.core.events import decode_event
from mqtune.core.experiment import STATE_FORM, Experiment
from mqtune.core.labels import Labels
from mqtune.core.resources import Resources
from mqtune.core.trial import (
    Action,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Decision,
    FurtherTask,
    Intent,
    Report,
    Restart,
    SavedCheckpoint,
    Stop,
    Transition,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile
from mqtune.results import STATE_FILE, Worth, empty_experiment, fold_copy

#: Every state is worth it.
ALWAYS = Worth(1, 0, 200)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """The reports that were folded."""
    folded: list[Report] = []
    apply = Experiment.apply_report

    def noted(experiment: Experiment, report: Report) -> Trial | None:
        folded.append(report)
        return apply(experiment, report)

    monkeypatch.setattr(Experiment, "apply_report", noted)
    return folded


def book_of(folder: Path, seed: int = 0, trials: int = 6) -> Book:
    """An experiment that runs, each trial with some reports, and still runs."""
    book, rng = Book(folder, scheduler=ASHA), random.Random(seed)
    for number in range(1, trials + 1):
        book.run(f"{number:04d}", *(rng.random() for _ in range(rng.randint(1, 9))), config={"lr": rng.random()})
    return book


def whole(folder: Path) -> bytes:
    """What reading all of a copy gives."""
    entries = list(JournalFile(folder / JOURNAL_FILE).read())
    first: Any = decode_event(entries[0].data)
    experiment = empty_experiment(first)
    for event in events_in_order([(entry.id, entry.data) for entry in entries]):
        experiment.apply_report(event) if isinstance(event, Report) else experiment.apply(event)
    return encode_value(experiment.state())


def opened(folder: Path, worth: Worth = ALWAYS) -> bytes:
    return encode_value(fold_copy(folder, worth)[0].state())


def write(folder: Path, entries: list[Entry]) -> None:
    folder.mkdir(exist_ok=True)
    file = JournalFile(folder / JOURNAL_FILE)
    file.begin(entries)
    file.close()


def entries_in(folder: Path) -> list[Entry]:
    return list(JournalFile(folder / JOURNAL_FILE).read())


def test_every_field_is_in_a_state() -> None:
    experiment = vars(Experiment("name", metric="loss", mode="min"))
    defined = {"name", "objective", "metric", "mode", "max_failures", "max_lost", "accept_no_report", "_sign"}
    # The environments are those of the attempts.
    converted = {"trials", "counts", "requests", "code_changes", "labels", "owner", "best", "_environments"}

    assert experiment.keys() - defined - converted <= set(STATE_FORM)
    assert {field.name for kind in (Trial, Attempt) for field in fields(kind)} <= set(STATE_FORM)


def test_a_state_restores_trials_as_they_were() -> None:
    attempt = Attempt(
        2, 3, {"lr": 1, "raw": b"\xff"}, resources=Resources(gpus=1, tags=["a100"], seats=2), devices=("0", "1"),
        end=AttemptEnd.LOST, intent=Intent.STOP, stop=Stop("user", "why", 4, 0), further_tasks=(FurtherTask(1, "w", "h", "q", ("0",)),),
    )  # fmt: skip
    trial = Trial(
        TrialId("0001"), {}, TrialStatus.PAUSED, [Attempt(1, 1.0), attempt], [Transition(TrialStatus.PAUSED, 5, "why", "user")],
        labels=Labels(("a",), "note"), decision=Decision(Action.PAUSE, "why"), restart=Restart({"lr": 2}), point=(1, 0.5),
        checkpoints={CheckpointId("m-1"): SavedCheckpoint(CheckpointId("m-1"), 6, {"loss": math.inf})}, best_value=7,
    )  # fmt: skip
    experiment, restored = (Experiment("name", metric="loss", mode="min") for _ in range(2))
    experiment.trials = {trial.id: trial}

    restored.restore(decode_value(encode_value(experiment.state())))

    # By its text, in which 1 differs from 1.0.
    assert repr(restored.trials) == repr(experiment.trials)


def test_after_one_who_reads_the_whole_copy_the_next_one_reads_the_rest(tmp_path: Path, reports: list[Report]) -> None:
    folder = book_of(tmp_path / "x").save()
    expected = whole(folder)
    first = len(reports)
    assert opened(folder) == expected
    assert (folder / STATE_FILE).is_file()
    assert len(reports) == 2 * first

    reports.clear()
    experiment, part = fold_copy(folder, ALWAYS)

    assert encode_value(experiment.state()) == expected
    assert len(reports) < first / 4
    assert list(part.read()) == entries_in(folder)
    assert Results.load(folder).best.value == min(each.best_value for each in experiment.trials.values())


def test_a_copy_is_read_in_any_steps_as_at_once(tmp_path: Path) -> None:
    entries = entries_in(book_of(tmp_path / "x", trials=9).save())
    rng = random.Random(1)
    for turn in range(20):
        folder = tmp_path / f"{turn}"
        worth = Worth(1, 0, rng.choice([0, 100, 1_000]))
        for count in sorted({*rng.sample(range(2, len(entries)), 4), len(entries)}):
            write(folder, entries[:count])
            assert opened(folder, worth) == whole(folder)


def test_whatever_byte_of_it_is_damaged_and_wherever_it_is_cut_the_copy_counts(tmp_path: Path) -> None:
    folder = book_of(tmp_path / "x", trials=2).save()
    expected = opened(folder)
    state = (folder / STATE_FILE).read_bytes()
    for place in range(0, len(state), 17):
        damaged = bytearray(state)
        damaged[place] ^= 0x41
        for content in (bytes(damaged), state[:place]):
            (folder / STATE_FILE).write_bytes(content)
            assert opened(folder) == expected


def form_of(folder: Path) -> list[object]:
    """The version and the rules with which a state was written."""
    found: list[object] = decode_value((folder / STATE_FILE).read_bytes())[0]
    return found


def sealed(form: list[object], packed: bytes) -> bytes:
    return encode_value([form, zlib.crc32(packed), packed])


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("state"),
        lambda body: body["state"].pop("trials"),
        lambda body: body["state"].update(best="nobody"),
        lambda body: body["state"]["trials"][0].pop(),
        lambda body: body["state"]["trials"][0].__setitem__(2, "no status"),
        lambda body: body.update(end="far"),
        lambda body: body.update(entry="no entry"),
        lambda body: body.update(state=None),
        lambda body: body["state"].update(requests=[b"\xc1"]),
    ],
)
def test_one_that_is_whole_and_holds_nonsense_is_not_used(tmp_path: Path, change: Callable[[Any], object]) -> None:
    folder = book_of(tmp_path / "x").save()
    expected = opened(folder)
    body = decode_value(decode_value((folder / STATE_FILE).read_bytes())[2])
    change(body)
    (folder / STATE_FILE).write_bytes(sealed(form_of(folder), encode_value(body)))

    assert opened(folder) == expected


def test_that_of_another_version_is_not_used_and_is_replaced(tmp_path: Path) -> None:
    folder = book_of(tmp_path / "x").save()
    expected = opened(folder)
    body = decode_value(decode_value((folder / STATE_FILE).read_bytes())[2])
    body["state"]["reason"] = "another fold"
    form = form_of(folder)
    (folder / STATE_FILE).write_bytes(sealed(["0.0.1", *form[1:]], encode_value(body)))

    assert opened(folder) == expected
    assert form_of(folder) == form


def test_that_of_another_journal_of_the_same_length_or_of_a_longer_copy_is_not_used(tmp_path: Path) -> None:
    one, other = Book(tmp_path / "x"), Book(tmp_path / "x")
    for book, shift in ((one, 0.0), (other, 0.5)):
        for number in range(1, 7):
            book.run(f"{number:04d}", *(shift + step / 8 for step in range(1, 9)))
    folder = one.save()
    size = (folder / JOURNAL_FILE).stat().st_size

    for entries in (other.entries, other.entries[:5]):
        fold_copy(folder, ALWAYS)
        write(folder, entries)
        assert ((folder / JOURNAL_FILE).stat().st_size == size) == (entries is other.entries)
        assert opened(folder) == whole(folder)


@pytest.mark.parametrize("lag_bytes", [0, 200])
def test_a_decision_on_a_report_in_the_state_is_seen(tmp_path: Path, reports: list[Report], lag_bytes: int) -> None:
    worth = Worth(1, 0, lag_bytes)
    book = book_of(tmp_path / "x", trials=3)
    book.stage("0009", {"lr": 0.5})
    cursors = []
    for value in (5.0, 4.0, 3.0, 2.0, 1.0):
        book.report("0009", {"loss": value})
        cursors.append(book.cursor)
    folder = book.save()
    fold_copy(folder, worth)
    # It stood at the first of them, and has read the others since.
    book.cursor = cursors[0]
    book.decide("0009")
    book.save()
    reports.clear()

    experiment = fold_copy(folder, worth)[0]

    assert encode_value(experiment.state()) == whole(folder)
    assert experiment.trials[TrialId("0009")].late_reports == 4


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_folder_that_can_not_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    folder = book_of(tmp_path / "x").save()
    before = sorted(path.name for path in folder.iterdir())

    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("mqtune.results.kept_state.replace_file", refuse)

    assert opened(folder) == whole(folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_who_may_not_read_the_copy_may_not_read_its_state(tmp_path: Path) -> None:
    folder = book_of(tmp_path / "x").save()
    (folder / JOURNAL_FILE).chmod(0o600)

    fold_copy(folder, ALWAYS)

    assert (folder / STATE_FILE).stat().st_mode & 0o777 == 0o600
