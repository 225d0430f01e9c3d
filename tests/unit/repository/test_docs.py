"""The pages about trials and the cheat sheet are true: their examples run, and their tables and figures are the code's."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from pages import ROOT

import mqtune
from mqtune.checkpoints import MAX_DICT_BYTES
from mqtune.cli import COMMANDS
from mqtune.core import errors
from mqtune.core.callback import Callback
from mqtune.core.experiment import LOST_BUDGET
from mqtune.core.trial import (
    ALLOWED,
    LONGEST_RETRY_PAUSE_S,
    RETRY_PAUSE_S,
    AttemptEnd,
    Trial,
    TrialStatus,
    checkpoint_id,
)
from mqtune.driver.trials import DrivenTrial
from mqtune.worker.attempt import PAUSE_GRACE_S, TERMINATE_GRACE_S, TOLD_GRACE_S
from mqtune.worker.retries import ANOTHER_DEVICE_S, ANOTHER_WORKER_S

PAGES: Final = {
    page: (ROOT / "docs" / f"{page}.md").read_text() for page in ("trials", "checkpoints", "processes", "deciding")
}
CHEAT_SHEET: Final = (ROOT / "docs" / "cheatsheet.md").read_text()
_NAME: Final = re.compile(r"`(?:([a-z]+)\.)?(\w+)(?:[(=][^`]*)?`")
#: What a name before a dot on the pages stands for.
_OWNERS: Final[dict[str, type | ModuleType]] = {
    "mqtune": mqtune,
    "tuner": mqtune.Tuner,
    "results": mqtune.Results,
    "trial": Trial,
}
Run = Callable[[str], ModuleType]


def section(page: str, title: str) -> str:
    """The text of one section of a page."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGES[page], re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def table(page: str, title: str, head: str) -> list[list[str]]:
    """The cells of a table in a section, by the first cell of its head."""
    lines = section(page, title).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs all of a page's examples as one module."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> ModuleType:
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        path = tmp_path / "the_page.py"
        path.write_text("import mqtune\n\n" + "\n\n".join(blocks))
        spec = importlib.util.spec_from_file_location("the_page", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["the_page"] = module
        spec.loader.exec_module(module)
        return module

    yield run
    sys.modules.pop("the_page", None)


def test_the_table_of_statuses_is_the_one_in_the_code():
    rows = table("trials", "Statuses", "status")

    assert [row[0] for row in rows] == [status.name for status in TrialStatus]
    for name, _, following in rows:
        assert set(following.split(", ")) - {"–"} == {status.name for status in ALLOWED[TrialStatus[name]]}


def test_every_end_of_an_attempt_is_in_its_table():
    ends = [row[0] for row in table("trials", "Attempts", "an attempt ends as")]

    assert sorted(ends) == sorted(end.value.replace("_", " ") for end in AttemptEnd)


@pytest.mark.parametrize(
    ("page", "title", "says"),
    [
        ("trials", "Attempts", f"more than `max_lost` times in a row, {LOST_BUDGET} by default"),
        ("trials", "Attempts", f"for {ANOTHER_WORKER_S:g} s its worker leaves it to others"),
        ("trials", "Attempts", f"for {ANOTHER_DEVICE_S:g} s it runs on no device"),
        ("trials", "Attempts", f"waits {RETRY_PAUSE_S:g} s after"),
        ("trials", "Attempts", f"up to {LONGEST_RETRY_PAUSE_S:g} s: a trial"),
        ("trials", "What can be done to it", f"{PAUSE_GRACE_S / 60:g} minutes to end its step"),
        ("trials", "What can be done to it", f"has {TOLD_GRACE_S:g} s for its `finally` blocks"),
        ("trials", "What can be done to it", f"SIGTERM, and {TERMINATE_GRACE_S:g} s later SIGKILL"),
        ("checkpoints", "Kinds", f"at most {MAX_DICT_BYTES:,} bytes"),
        ("checkpoints", "Kinds", f"`{checkpoint_id('0007', 1, 3, in_memory=False, claim='5f2c09ab')}`"),
        ("checkpoints", "Kinds", f"`{checkpoint_id('0007', 1, 3, in_memory=True, claim='5f2c09ab')}`"),
        (
            "checkpoints",
            "How long they are kept",
            f"Checkpoints(keep_last={mqtune.Checkpoints().keep_last}, keep_best={mqtune.Checkpoints().keep_best})` is the",
        ),
    ],
)
def test_a_figure_is_the_codes(page: str, title: str, says: str):
    assert says in " ".join(section(page, title).split())


#: Where public names are.
_HOMES = (mqtune, mqtune.schedulers, mqtune.schedulers.stopping, mqtune.search)


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_a_page_is_there(page: str):
    givers = (
        mqtune.Tuner,
        mqtune.Failures,
        mqtune.Checkpoints,
        mqtune.Process,
        mqtune.RunOptions,
        mqtune.TimeLimit,
        mqtune.PromotionASHA,
        mqtune.MedianStopping,
        mqtune.Tuner.add,
    )
    settings = {name for giver in givers for name in inspect.signature(giver).parameters}
    homes = (*_HOMES, mqtune.Tuner, mqtune.schedulers.Scheduler, Callback, errors, mqtune.Trainable)
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)

    for owner, name in _NAME.findall(prose):
        if owner in _OWNERS:
            known = hasattr(_OWNERS[owner], name) or name in getattr(_OWNERS[owner], "__dataclass_fields__", ())
            assert known, f"{owner}.{name}"
    for setting in re.findall(r"`(\w+)=[^`]*`", prose):
        assert setting in settings, setting
    for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+|[A-Z]{3,}\w*)`", prose):
        assert any(hasattr(home, name) for home in homes), name


def test_every_call_of_a_person_is_a_method_of_the_tuner_or_of_a_trial():
    calls = {
        name for row in table("trials", "What can be done to it", "call") for name in re.findall(r"(\w+)`", row[0])
    }

    assert all(hasattr(mqtune.Tuner, name) or hasattr(DrivenTrial, name) for name in calls)
    assert {name for name in vars(mqtune.TrialHandle) if not name.startswith("_")} <= calls


def test_every_scheduler_and_stop_rule_is_in_its_table():
    classes = {name: kind for home in _HOMES for name in home.__all__ if inspect.isclass(kind := getattr(home, name))}
    plans = {name for name, kind in classes.items() if issubclass(kind, mqtune.schedulers.Scheduler)} - {"Scheduler"}
    rules = {name for name, kind in classes.items() if issubclass(kind, mqtune.schedulers.stopping.StopRule)} - {
        "StopRule"
    }

    assert {row[0].strip("`") for row in table("deciding", "Schedulers", "scheduler")} == plans
    named = " ".join(row[0] for row in table("deciding", "Stop rules", "rule"))
    assert {name for _, name in _NAME.findall(named)} == rules


def test_the_examples_of_the_life_of_a_trial_run(run: Run):
    first, second, third = run(PAGES["trials"]).tuner.get_trials()

    assert [trial.status.name for trial in (first, second, third)] == ["COMPLETED", "ABANDONED", "COMPLETED"]
    assert first.config == {"lr": 0.5}
    assert first.attempts[1].checkpoint
    assert third.parent == second.id
    assert third.attempt.checkpoint.startswith((f"m-{second.id}", f"p-{second.id}"))


def test_the_trainables_of_the_examples_run_without_a_trial(run: Run, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    checkpoints = run(PAGES["checkpoints"])
    checkpoints.train({"lr": 0.5})
    checkpoints.train_in_memory({"lr": 0.5})
    run(PAGES["processes"]).train_here({"lr": 0.5})

    assert sum("loss=" in record.message for record in caplog.records) == 19


def test_the_scheduler_rules_and_callback_of_the_examples_work_together(run: Run):
    trainable = run(PAGES["checkpoints"]).Train
    page = run(PAGES["deciding"])
    for rule in page.rules:
        diary = page.Diary()
        tuner = mqtune.Tuner(
            trainable,
            {"lr": mqtune.uniform(0, 1)},
            metric="loss",
            mode="min",
            scheduler=page.Rehearsal(),
            stop=rule,
            max_trials=3,
            # A config that is as good as the bound at its first report would have no second attempt.
            seed=1,
            run=mqtune.RunOptions(callbacks=[diary], progress=False),
            backend=mqtune.Simulated(page.curve),
        )

        results = tuner.run()

        assert [result.status.name for result in results] == ["COMPLETED"] * 3
        assert [len(result.attempts) for result in results] == [2, 2, 2]
        assert len(diary.lines) == 3


def test_the_cheat_sheet_is_a_program_that_runs_and_has_each_public_name(run: Run):
    page = run(CHEAT_SHEET)

    assert [trial.status.name for trial in page.results].count("COMPLETED") >= 1
    text = inspect.getsource(page)
    for home in _HOMES:
        public = set(home.__all__) - {"__version__", "stopping"}
        assert {name for name in public if not re.search(rf"\b{home.__name__}\.{name}\b", text)} == set()


def test_every_verb_of_the_command_line_that_a_page_names_is_there():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        (page.name, verb)
        for page in pages
        for verb in re.findall(r"(?:`|^\s*\$ )mqtune ([a-z][a-z-]*)", page.read_text(), re.MULTILINE)
    }

    assert len(named) > 50
    assert sorted((page, verb) for page, verb in named if verb not in COMMANDS) == []
