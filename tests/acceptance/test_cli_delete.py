"""``mqtune delete`` deletes a whole experiment, but none that has a driver."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trainables_saving
from accounts import Accounts
from faces import said
from waiting import eventually

import mqtune
from mqtune.checkpoints import open_store
from mqtune.checkpoints.store import Tenant
from mqtune.core.errors import ConfigurationError
from mqtune.journal import connect
from mqtune.results.results import Results
from mqtune.services.upkeep import deletion

Tune = Callable[..., mqtune.Tuner]


run = partial(said, "delete")
archived = partial(said, "archive")


def keys_of(broker: str, name: str) -> list[str]:
    with contextlib.closing(connect(broker)) as client:
        keys = [key.decode() for key in client.keys(f"mqtune:x:{{{name}}}:*")]  # type: ignore[union-attr]
        names = client.zrange("mqtune:experiments", 0, -1)
    keys = [key for key in keys if ":usage:" not in key]
    return [*keys, *(each.decode() for each in names if each.decode() == name)]  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def _address(fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", fleet)


def test_an_experiment_goes_with_its_keys_checkpoints_and_folder_and_no_other_does(
    tune: Tune, fleet: str, tmp_path: Path, mqtune_home: Path
):
    store = tmp_path / "store"
    for name in ("doomed", "doomed-not"):
        tune("saves_folder", name=name, max_trials=2, checkpoints=mqtune.Checkpoints(store)).run()
    assert keys_of(fleet, "doomed")

    planned = run("doomed", "--dry-run")
    assert run("doomed", code=2).endswith("can't ask for confirmation without a terminal; pass --yes\n")
    assert keys_of(fleet, "doomed")
    assert (mqtune_home / "doomed").is_dir()
    done = run("doomed", "--yes")

    assert "would delete  doomed: 2 trials on its server" in planned
    assert f"2 checkpoints in file://{store}/doomed\n" in planned
    assert done.endswith("doomed is deleted\n")
    assert run("doomed", "--yes", code=2).endswith(
        "'doomed' is short for 'doomed-not'; with --yes, give the whole name\n"
    )
    assert keys_of(fleet, "doomed") == []
    assert not (mqtune_home / "doomed").exists()
    assert not (store / "doomed").exists()
    assert keys_of(fleet, "doomed-not")
    assert (mqtune_home / "doomed-not").is_dir()
    assert open_store(str(store / "doomed-not")).ids()
    assert len(tune("steady", name="doomed", max_trials=3).run()) == 3
    open_store(str(store / "doomed-not")).claim(Tenant("another", "doomed-not"))
    assert "the checkpoints in " in run("doomed-not", "--yes")
    assert open_store(str(store / "doomed-not")).ids()
    assert open_store(str(store / "doomed-not")).tenants() == [Tenant("another", "doomed-not")]


def test_an_experiment_that_is_driven_is_refused_whole(tune: Tune, fleet: str, mqtune_home: Path):
    tuner = tune("steady", name="alive", max_trials=2)
    tuner.step(0)
    before = keys_of(fleet, "alive")

    refused = run("alive", "--yes", code=1)
    here = run("alive", "--here", "--yes", code=1)
    while not tuner.is_finished:
        tuner.step(0.1)
    tuner.close()

    assert "end it first: mqtune end alive --now" in refused
    assert "seems to be running; end it first" in here
    assert before
    assert run("alive", "--here", "--yes").endswith("alive is deleted\n")
    assert not (mqtune_home / "alive").exists()
    assert keys_of(fleet, "alive")
    assert run("alive", "--yes").endswith("alive is deleted\n")
    assert keys_of(fleet, "alive") == []


def test_messages_that_wait_go_with_their_experiment_and_no_others_do(tune: Tune, fleet: str):
    def messages(name: str) -> int:
        return len(deletion.messages_of(name, fleet))

    for name in ("gone", "gone-not"):
        with contextlib.closing(tune("slow", name=name, max_trials=4)) as tuner:
            # Two have the slots, and others wait for them.
            eventually(lambda tuner=tuner: tuner.step(0.1) or len(tuner.get_trials()) == 4, 60)
    eventually(lambda: messages("gone") == 2, 60)
    assert messages("gone-not") == 4
    with contextlib.closing(Accounts(fleet)) as accounts:
        planned = run("gone", "--dry-run", "--broker", accounts.make("driver"))
        assert messages("gone") == 2
        run("gone", "--broker", accounts.make("driver"), "--yes")

    assert "would delete  2 messages in queues of workers" in planned
    assert messages("gone") == 0
    with contextlib.closing(tune("slow", name="gone-not", max_trials=4)) as tuner:
        eventually(lambda: tuner.step(0.1) or len(tuner.get_trials(mqtune.TrialStatus.RUNNING)) == 2, 60)
        tuner.stop_all()
        eventually(lambda: tuner.is_finished or tuner.step(0.1), 60)
    assert len(Results.load("gone-not")) == 4


def test_an_archive_keeps_the_earlier_one_of_that_name(
    tune: Tune, fleet: str, mqtune_home: Path, caplog: pytest.LogCaptureFixture
):
    before = tune("learns", name="archived-twice", max_trials=2).run().csv()
    archived("archived-twice")
    first = (mqtune_home / "archived-twice").rename(mqtune_home.with_name("first"))
    # Another machine, whose folder has no experiment of that name.
    tune("learns", name="archived-twice", max_trials=3).run()
    shutil.rmtree(mqtune_home / "archived-twice")
    first.rename(mqtune_home / "archived-twice")

    archived("archived-twice")

    assert len(Results.load("archived-twice")) == 3
    (aside,) = (mqtune_home / "archived-twice").glob("journal-*.msgpack")
    assert f"it was renamed to {aside}" in caplog.text
    earlier = mqtune_home / "earlier"
    earlier.mkdir()
    aside.rename(earlier / "journal.msgpack")
    assert Results.load(earlier).csv() == before


def test_an_archived_experiment_goes_on_where_it_was_and_is_deleted_whole(
    tune: Tune, fleet: str, tmp_path: Path, mqtune_home: Path, monkeypatch: pytest.MonkeyPatch
):
    space, name = {"lr": 1.0, "steps": mqtune.choice([80]), "step_s": 0.05}, "in-files"
    places, counts = mqtune.Checkpoints(tmp_path / "store"), trainables_saving.in_files
    with contextlib.closing(tune(counts, space, name=name, max_trials=1, checkpoints=places)) as tuner:
        eventually(lambda: tuner.step(0.1) or (tuner.get_trials() and tuner.get_trials()[0].checkpoints), 60)

    assert "is unfinished, and archiving would end its running trials" in archived(name, code=1)
    assert "1 of them are running without a driver, and will end" in run(name, "--dry-run")
    assert "to continue it: mqtune drive" in archived(name, "--yes")
    monkeypatch.delenv("MQTUNE_BROKER")
    with pytest.raises(ConfigurationError, match=f"is archived .*`mqtune drive {name} --broker URL`"):
        mqtune.Tuner.attach(name)
    said("drive", name, "--broker", fleet)

    (trial,) = Results.load(name)
    _, second = trial.attempts
    assert second.checkpoint
    # It continued after its checkpoint, and did the rest.
    assert trial.metrics["step"] == 80
    assert second.reports < 80
    assert not (mqtune_home / name / "archived").exists()

    shutil.copytree(mqtune_home / name, tmp_path / "moved")
    assert "delete it by hand" in run(str(tmp_path / "moved"), "--here", "--yes", code=1)
    archived(name, "--broker", fleet)
    assert (tmp_path / "store" / name).exists()
    assert f"delete  {mqtune_home / name}\n{name} is deleted" in run(name, "--yes")
    assert not (mqtune_home / name).exists()
    assert not (tmp_path / "store" / name).exists()
