"""``mqtune delete``: all of an experiment goes, and of one that is driven nothing."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import trainables
from accounts import Accounts
from click.testing import CliRunner

import mqtune
from mqtune.checkpoints import open_store
from mqtune.cli import delete, group
from mqtune.core.errors import MqtuneError
from mqtune.journal.connection import connect

Tune = Callable[..., mqtune.Tuner]


def run(*arguments: str, code: int = 0, answer: str | None = None) -> str:
    """Return what is said, by a command that must end so."""
    done = CliRunner().invoke(group, ["delete", *arguments], input=answer)
    is_refused = isinstance(done.exception, MqtuneError)
    assert (1 if is_refused else done.exit_code) == code, (done.output, done.exception)
    return str(done.exception) if is_refused else done.output


def keys_of(broker: str, name: str) -> list[str]:
    with contextlib.closing(connect(broker)) as client:
        keys = [key.decode() for key in client.keys(f"mqtune:x:{{{name}}}:*")]  # type: ignore[union-attr]
        names = client.zrange("mqtune:experiments", 0, -1)
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
    assert run("doomed", code=2).endswith("nobody can be asked here; give --yes\n")
    assert keys_of(fleet, "doomed")
    assert (mqtune_home / "doomed").is_dir()
    done = run("doomed", "--yes")

    assert "would delete  doomed: 2 trials on its server" in planned
    assert f"2 checkpoints in file://{store}/doomed\n" in planned
    assert done.endswith("doomed is deleted\n")
    assert run("doomed", "--yes", code=2).endswith(
        "'doomed' is short for 'doomed-not'; with --yes give the whole name\n"
    )
    assert keys_of(fleet, "doomed") == []
    assert not (mqtune_home / "doomed").exists()
    assert open_store(str(store / "doomed")).ids() == []
    assert keys_of(fleet, "doomed-not")
    assert (mqtune_home / "doomed-not").is_dir()
    assert open_store(str(store / "doomed-not")).ids()
    assert len(tune("steady", name="doomed", max_trials=3).run()) == 3


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
    assert "seems to run; end it first" in here
    assert before
    assert run("alive", "--here", "--yes").endswith("alive is deleted\n")
    assert not (mqtune_home / "alive").exists()
    assert keys_of(fleet, "alive")
    assert run("alive", "--yes").endswith("alive is deleted\n")
    assert keys_of(fleet, "alive") == []


def test_an_experiment_with_a_server_of_its_own_goes_with_its_folder(mqtune_home: Path):
    mqtune.Tuner(
        trainables.steady, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", name="own", max_trials=1,
        backend=mqtune.Local(slots=1), run=mqtune.Run(progress=False),
    ).run()  # fmt: skip

    assert run("own", "--yes").endswith("own is deleted\n")
    assert not (mqtune_home / "own").exists()


def test_a_folder_elsewhere_is_not_deleted(tune: Tune, tmp_path: Path, mqtune_home: Path):
    tune("steady", name="moved", max_trials=1).run()
    shutil.move(mqtune_home / "moved", tmp_path / "moved")

    assert "delete it by hand" in run(str(tmp_path / "moved"), "--here", "--yes", code=1)
    assert (tmp_path / "moved").is_dir()


def test_a_drivers_account_may_delete_and_an_operators_may_not(tune: Tune, fleet: str):
    tune("steady", name="guarded", max_trials=1).run()
    with contextlib.closing(Accounts(fleet)) as accounts:
        operator, driver = accounts.make("operator"), accounts.make("driver")

        refused = run("guarded", "--broker", operator, "--yes", code=1)
        assert keys_of(fleet, "guarded")
        done = run("guarded", "--broker", driver, "--yes")

    assert "make it again with what `mqtune acl` of this version prints" in refused
    assert done.endswith("guarded is deleted\n")
    assert keys_of(fleet, "guarded") == []


def test_ctrl_c_at_the_question_deletes_nothing(
    tune: Tune, fleet: str, mqtune_home: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object, **__: object) -> bool:
        raise click.Abort

    tune("steady", name="spared", max_trials=1).run()
    monkeypatch.setattr(delete, "_is_wanted", interrupted)

    assert run("spared", code=130) == "\n"
    assert keys_of(fleet, "spared")
    assert (mqtune_home / "spared").is_dir()
