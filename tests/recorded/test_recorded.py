"""Experiments that were run, and recorded, with an earlier mqtune: they are read as they were, and go on."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import redis
from said import said

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.core.events import ExperimentCreated, decode_event
from mqtune.core.trial import TrialStatus
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile
from mqtune.results.results import Results

HERE: Final = Path(__file__).parent
ALL: Final = sorted(path.parent.name for path in HERE.glob(f"*/{JOURNAL_FILE}"))
FINISHED: Final = [name for name in ALL if not name.startswith("cut-")]


def recorded(name: str) -> dict[str, Any]:
    """What the results said when it was recorded."""
    found: dict[str, Any] = json.loads((HERE / name / "said.json").read_text())
    return found


def definition(name: str) -> dict[str, Any]:
    return Results.load(HERE / name).definition


def moved(name: str, home: Path, *, store: bool) -> None:
    """Put an experiment's folder into this test's home, as its driver has left it; its folders' names are those of here."""
    folder = home / name
    shutil.copytree(HERE / name, folder)
    (folder / "redis").mkdir()
    entries = list(JournalFile(folder / JOURNAL_FILE).read())
    created = decode_event(entries[0].data)
    assert isinstance(created, ExperimentCreated)
    mark = urlsplit(created.definition["store"]).fragment
    if store and not (folder / "checkpoints").exists():
        (folder / "checkpoints" / ".store").mkdir(parents=True)
        mine = json.dumps({"version": 1, "name": mark.partition("=")[2]})
        (folder / "checkpoints" / ".store" / "store.json").write_text(mine)
    if store:
        # Git keeps no empty folder.
        (folder / "checkpoints" / ".staging").mkdir(exist_ok=True)
    here = f"file://{folder}/checkpoints#{mark}" if store else ""
    first = replace(created, definition=created.definition | {"store": here, "code_root": str(HERE)})
    copy = JournalFile(folder / JOURNAL_FILE)
    copy.begin([Entry(entries[0].id, first.encode()), *entries[1:]])
    copy.close()


def trials_of(results: Results) -> dict[str, dict[str, Any]]:
    return {trial["id"]: trial for trial in said(results)["trials"]}


def without_dicts(trial: dict[str, Any]) -> dict[str, Any]:
    """The same without the checkpoints that were in Redis alone."""
    kept = [saved for saved in trial["checkpoints"] if not saved[0].startswith("m-")]
    return trial | {"checkpoints": kept, "checkpoint": kept[-1][0] if kept else ""}


@pytest.mark.parametrize("name", ALL)
def test_results_say_of_a_recorded_experiment_what_they_said_then(name: str):
    results = Results.load(HERE / name)

    now, then = said(results), recorded(name)

    # Nobody had noted then who began it.
    assert now["summary"].pop("owner") == {"account": "", "user": "", "host": ""}
    # It was not there when these were recorded.
    has_ended = [TrialStatus(trial["status"]).is_terminal for trial in then["trials"]]
    assert now["summary"].pop("progress")["ended"] == sum(has_ended)
    assert {"none": "fifo"}.get(kind := now["summary"].pop("scheduler"), kind) == definition(name)["scheduler"][
        "scheduler"
    ]
    assert now["summary"].pop("searcher") in {"random", "tpe", "none"}
    assert now["summary"] == then["summary"]
    for new, old in zip(now["trials"], then["trials"], strict=True):
        assert new == old
    assert now["reports"] == then["reports"]


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_one_is_read_again_by_a_driver_that_finds_the_same(
    name: str,
    mqtune_home: Path,
    redis_server: EmbeddedServer,
    redis_client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
):
    """Its schedulers and searchers see every event again; Redis has lost it, and gets it back from the copy."""
    moved(name, mqtune_home, store=False)

    # One was ended by hand, and its searcher has more.
    number = sum(trial["history"][0][3] == "searcher" for trial in recorded(name)["trials"])
    quiet = mqtune.RunOptions(progress=False)
    results = mqtune.Tuner.attach(name, backend=redis_server.url, run=quiet, max_trials=number).run()

    assert results.outcome == "finished"
    assert [without_dicts(trial) for trial in said(results)["trials"]] == [
        without_dicts(trial) for trial in recorded(name)["trials"]
    ]
    assert not [record for record in caplog.records if "suggests" in record.message]


def check_that_it_went_on(name: str, results: Results, caplog: pytest.LogCaptureFixture) -> None:
    assert results.outcome == "finished"
    assert {trial.status for trial in results} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    assert len(results) == definition(name)["max_trials"]
    now = trials_of(Results.load(name))
    for then in recorded(name)["trials"]:
        ended = [attempt for attempt in then["attempts"] if attempt["end"] is not None]
        assert now[then["id"]]["attempts"][: len(ended)] == ended
        if TrialStatus(then["status"]).is_terminal:
            assert without_dicts(now[then["id"]]) == without_dicts(then)
    assert not [record for record in caplog.records if "suggests" in record.message]


def test_an_unfinished_one_is_gone_on_with_by_its_script(
    mqtune_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    moved("cut-asha", mqtune_home, store=True)
    import recorded_trainables

    results = mqtune.Tuner(
        recorded_trainables.steady,
        {"x": mqtune.uniform(0, 1), "steps": 9, "step_s": 0.03},
        name="cut-asha",
        metric="loss",
        mode="min",
        backend=mqtune.Local(slots=2),
        run=mqtune.RunOptions(progress=False),
        seed=7,
        scheduler=mqtune.ASHA(9),
        max_trials=14,
    ).run()

    check_that_it_went_on("cut-asha", results, caplog)


def test_an_unfinished_one_is_gone_on_with_from_its_checkpoints_without_its_script(
    mqtune_home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    moved("cut-pbt", mqtune_home, store=True)

    results = mqtune.Tuner.attach("cut-pbt", run=mqtune.RunOptions(progress=False)).run()

    check_that_it_went_on("cut-pbt", results, caplog)
    then = {trial["id"]: trial for trial in recorded("cut-pbt")["trials"]}
    for trial in trials_of(results).values():
        before = then[trial["id"]]
        following = trial["attempts"][len(before["attempts"])]
        if not before["attempts"][-1]["source"] and following["source"] is None:
            assert following["checkpoint"] == before["checkpoint"], "nothing that was saved is trained again"
