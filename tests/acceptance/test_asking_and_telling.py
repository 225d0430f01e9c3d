"""Trials that people evaluate outside join those of workers, over a real Redis: from Python, from the command line, across drivers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faces import said
from pages import ROOT
from test_cli_steer import driven
from waiting import eventually
from walkthrough import blocks_of

import mqtune
from mqtune.core.errors import RequestRefused
from mqtune.core.trial import ITERATION, TrialStatus
from mqtune.schedulers.asha import ASHA

Tune = Callable[..., mqtune.Tuner]


def test_a_lab_asks_and_tells_beside_the_workers_and_a_later_driver_knows_it_all(
    tune: Tune, fleet: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # The workers' trials would be over before anybody asks.
    gate = tmp_path / "open"
    monkeypatch.setenv("MQTUNE_BROKER", fleet)

    def tuner() -> mqtune.Tuner:
        scheduler = ASHA(max_t=9, grace_period=1, reduction_factor=3, time_attr="epoch")
        space = {"x": mqtune.uniform(0, 1), "gate": str(gate)}
        return tune("steady_once_open", space, name="with-a-lab", max_trials=8, scheduler=scheduler, seed=1)

    with mqtune.Client(fleet) as client:
        with driven(tuner(), leave=True):
            lab = client.experiment("with-a-lab")
            asked = lab.ask(tags=["lab"], key="run-7")
            gate.touch()
            assert asked.config is not None
            assert lab.ask(key="run-7")[3:] == (asked.trial, asked.config)
            on_the_way = lab.tell(asked.trial, {"loss": 1e-9, "epoch": 1}, ends=False)
            table = lab.tell({"x": 0.25}, {"loss": 2e-9, "epoch": 9}, key="last year's row 3")
            with pytest.raises(RequestRefused, match="tell has epoch=None: give the step"):
                lab.tell(asked.trial, {"loss": 1e-9})
            by_hand = json.loads(said("ask", "with-a-lab", "--config", "x=0.5", "--json"))[0]
            waits = "evaluated outside"
            eventually(lambda: waits in said("why", "with-a-lab"), 60)
            assert f"trial {by_hand['trial']} has been evaluated outside" in said("why", "with-a-lab", by_hand["trial"])
        # Nobody drives: it is in the journal all the same.
        unread = lab.tell(asked.trial, {"loss": 1e-10, "epoch": 9}, request_id="once")
        assert (on_the_way.is_done, table.is_done, unread.is_done) == (True, True, False)
        with driven(tuner(), leave=True):
            assert lab.tell(asked.trial, {"loss": 1e-10, "epoch": 9}, request_id="once").is_done
            assert (
                said("tell", "with-a-lab", by_hand["trial"], "loss=3,epoch=9")
                == f"trial {by_hand['trial']} has your report\n"
            )
    results = tuner().run()

    trial = results[asked.trial]
    assert (trial.status, trial.metrics["loss"], trial.trial.reports) == (TrialStatus.COMPLETED, 1e-10, 2)
    assert (results.best.id, results.outcome) == (asked.trial, "finished")
    assert results[table.trial].config["x"] == 0.25
    # Eight of the searcher, one of them the lab's, and two configs of people's own.
    assert len(results) == 10
    assert results.experiment.trials[by_hand["trial"]].last_metrics[ITERATION] == 1
    told = [report.metrics["epoch"] for report in results.reports(asked.trial)]
    assert told == [1, 9]


def test_the_examples_of_the_page_run(tune: Tune, fleet: str, tmp_path: Path):
    space = {"lr": mqtune.uniform(0, 1), "width": 64}
    asked_and_told = [block.text for block in blocks_of(ROOT / "docs" / "outside.md") if block.language == "python"]
    first, on_the_way, table, in_process = asked_and_told
    names: dict[str, Any] = {
        "my_laboratory": lambda config: config["lr"],
        "train_one_epoch": lambda model: 0.5,
        "model": None,
        "table": [{"config": {"lr": 0.25}, "loss": 0.25}],
    }
    with mqtune.Client(fleet) as client:
        with driven(tune("silent", space, name="digits", max_trials=8), leave=True):
            exec(first.replace("redis://broker:6379/0", fleet), names)
            names["experiment"] = client.experiment("digits")
            names["asked"] = names["experiment"].ask({"lr": 0.5})
            exec(on_the_way, names)
            for _ in range(2):
                exec(table, names)
            client.experiment("digits").end(now=True)
        results = client.experiment("digits").results(tmp_path)
    names["tuner"] = tune("silent", space, name="digits-here", max_trials=8)
    with contextlib.closing(names["tuner"]):
        exec(in_process, names)
        here = [trial for trial in names["tuner"].get_trials() if trial.outside]

    outside = [each.trial for each in results if each.trial.outside]
    assert [trial.reports for trial in outside] == [1, 27, 1]
    assert {trial.status for trial in [*outside, *here]} == {TrialStatus.COMPLETED}
    assert len(here) == 1
