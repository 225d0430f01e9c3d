"""What docs/trials.md says is so: its examples run, and its tables and figures are the code's."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from test_layers import FLOORS, part_of

import mqtune
from mqtune.checkpoints import MAX_DICT_BYTES
from mqtune.core import errors
from mqtune.core.callback import Callback
from mqtune.core.experiment import LOST_BUDGET
from mqtune.core.trial import (
    ALLOWED,
    LONGEST_RETRY_PAUSE_S,
    RETRY_PAUSE_S,
    Attempt,
    AttemptEnd,
    Trial,
    TrialStatus,
    checkpoint_id,
)
from mqtune.driver.trials import DrivenTrial
from mqtune.worker.attempt import PAUSE_GRACE_S, TERMINATE_GRACE_S, TOLD_GRACE_S
from mqtune.worker.retries import ANOTHER_DEVICE_S, ANOTHER_WORKER_S

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "trials.md").read_text()
_NAME: Final = re.compile(r"`(?:([a-z]+)\.)?(\w+)(?:[(=][^`]*)?`")
#: What a name before a dot on the page stands for.
_OWNERS: Final[dict[str, type | ModuleType]] = {
    "mqtune": mqtune,
    "tuner": mqtune.Tuner,
    "results": mqtune.Results,
    "trial": Trial,
}


def section(title: str) -> str:
    """The text of one section of the page."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def table(title: str, head: str) -> list[list[str]]:
    """The cells of a table in a section, by the first cell of its head."""
    lines = section(title).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ModuleType]:
    """All of the page's examples as one module, which was run."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    path = tmp_path / "the_page.py"
    path.write_text("import mqtune\n\n" + "\n\n".join(blocks))
    spec = importlib.util.spec_from_file_location("the_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["the_page"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["the_page"]


def names_in(text: str) -> set[str]:
    return {name for _, name in _NAME.findall(text)}


def test_the_drawing_is_the_one_in_the_code():
    drawn = inspect.cleandoc(TrialStatus.__doc__ or "").partition("::\n\n")[2]
    on_page = re.search(r"```\n( +┌.*?)```", PAGE, re.DOTALL)

    assert on_page is not None
    assert inspect.cleandoc(on_page[1]).rstrip() == inspect.cleandoc(drawn).rstrip()


def test_the_table_of_statuses_is_the_one_in_the_code():
    rows = table("Statuses", "status")

    assert [row[0] for row in rows] == [status.name for status in TrialStatus]
    for name, _, following in rows:
        assert set(following.split(", ")) - {"–"} == {status.name for status in ALLOWED[TrialStatus[name]]}


def test_every_end_of_an_attempt_is_told():
    ends = [row[0] for row in table("Attempts", "an attempt ends as")]

    assert sorted(ends) == sorted(end.value.replace("_", " ") for end in AttemptEnd)
    fields = set(re.findall(r"`(\w+)`", section("Attempts").partition("| an attempt")[0]))
    assert fields <= set(Attempt.__dataclass_fields__)


def test_the_figures_are_those_of_the_code():
    doing = section("What can be done to it")

    assert f"more than `max_lost` times in a row, {LOST_BUDGET} by default" in section("Attempts")
    elsewhere = (
        f"for {ANOTHER_WORKER_S:g} s its worker leaves it to others with the same queue, and for {ANOTHER_DEVICE_S:g} s"
    )
    assert elsewhere in section("Attempts")
    assert f"waits {RETRY_PAUSE_S:g} s after" in " ".join(section("Attempts").split())
    assert f"up to {LONGEST_RETRY_PAUSE_S:g} s: a trial" in section("Attempts")
    assert f"{PAUSE_GRACE_S / 60:g} minutes to end its step" in doing
    assert f"has {TOLD_GRACE_S:g} s for its `finally` blocks" in " ".join(doing.split())
    assert f"SIGTERM, and {TERMINATE_GRACE_S:g} s later SIGKILL" in " ".join(doing.split())
    assert f"at most {MAX_DICT_BYTES:,} bytes" in section("Checkpoints")
    assert f"`{checkpoint_id('0007', 1, 3, in_memory=False, claim='5f2c09ab')}`" in section("Checkpoints")
    assert f"`{checkpoint_id('0007', 1, 3, in_memory=True, claim='5f2c09ab')}`" in section("Checkpoints")
    default = mqtune.Checkpoints()
    assert f"mqtune.Checkpoints(keep_last={default.keep_last}, keep_best={default.keep_best})` is the default" in PAGE


def test_every_name_on_the_page_is_there():
    givers = (
        mqtune.Tuner,
        mqtune.Failures,
        mqtune.Checkpoints,
        mqtune.Process,
        mqtune.Run,
        mqtune.TimeLimit,
        mqtune.PromotionASHA,
        mqtune.MedianStopping,
        mqtune.Tuner.add,
    )
    settings = {name for giver in givers for name in inspect.signature(giver).parameters}
    homes = (mqtune, mqtune.Tuner, mqtune.Scheduler, Callback, errors, mqtune.Trainable)
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)

    for owner, name in _NAME.findall(prose):
        if owner in _OWNERS:
            known = hasattr(_OWNERS[owner], name) or name in getattr(_OWNERS[owner], "__dataclass_fields__", ())
            assert known, f"{owner}.{name}"
    for setting in re.findall(r"`(\w+)=[^`]*`", prose):
        assert setting in settings, setting
    for name in re.findall(r"`([A-Z][a-z]+[A-Z]\w+|[A-Z]{3,}\w*)`", prose):
        assert any(hasattr(home, name) for home in homes), name


def test_every_call_of_a_person_is_a_method_of_the_tuner_or_of_a_trial():
    calls = {name for row in table("What can be done to it", "call") for name in re.findall(r"(\w+)`", row[0])}

    assert all(hasattr(mqtune.Tuner, name) or hasattr(DrivenTrial, name) for name in calls)
    assert {name for name in vars(mqtune.TrialHandle) if not name.startswith("_")} <= calls


def test_every_scheduler_rule_and_method_of_a_callback_is_told():
    classes = {name: kind for name in mqtune.__all__ if inspect.isclass(kind := getattr(mqtune, name))}
    plans = {name for name, kind in classes.items() if issubclass(kind, mqtune.Scheduler)} - {"Scheduler"}
    rules = {name for name, kind in classes.items() if issubclass(kind, mqtune.StopRule)} - {"StopRule"}

    assert {row[0].strip("`") for row in table("Schedulers", "scheduler")} == plans
    assert set(re.findall(r"^- `(\w+)`", section("Schedulers"), re.MULTILINE)) == plans
    assert names_in(" ".join(row[0] for row in table("Stop rules", "rule"))) == rules
    told = {name for name in vars(Callback) if name.startswith("on_")}
    assert {name for name in names_in(section("Callbacks")) if name.startswith("on_")} == told


def test_the_examples_run(page: ModuleType):
    first, second, third = page.tuner.get_trials()

    assert [trial.status.name for trial in (first, second, third)] == ["COMPLETED", "ABANDONED", "COMPLETED"]
    assert first.config == {"lr": 0.5}
    assert first.attempts[1].checkpoint
    assert third.parent == second.id
    assert third.attempt.checkpoint.startswith(f"m-{second.id}") or third.attempt.checkpoint.startswith(
        f"p-{second.id}"
    )


def test_the_trainables_of_the_examples_run_without_a_trial(page: ModuleType, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    page.train({"lr": 0.5})
    page.train_in_memory({"lr": 0.5})

    assert sum("loss=" in record.message for record in caplog.records) == 18


def test_the_class_scheduler_rules_and_callback_of_the_examples_work_together(page: ModuleType):
    for rule in page.rules:
        diary = page.Diary()
        tuner = mqtune.Tuner(
            page.Train,
            {"lr": mqtune.uniform(0, 1)},
            metric="loss",
            mode="min",
            scheduler=page.Rehearsal(),
            stop=rule,
            max_trials=3,
            # A config that is as good as the bound at its first report would have no second attempt.
            seed=1,
            run=mqtune.Run(callbacks=[diary], progress=False),
            backend=mqtune.Simulated(page.curve),
        )

        results = tuner.run()

        assert [result.status.name for result in results] == ["COMPLETED"] * 3
        assert [len(result.attempts) for result in results] == [2, 2, 2]
        assert len(diary.lines) == 3


def test_the_floors_of_the_design_are_those_that_imports_are_held_to():
    text = (ROOT / "docs" / "design.md").read_text()
    floor, told = -1, {}
    for first, places in re.findall(r"^\| (\d?) ?\| ([^|]*`[^|]*) \|", text, re.MULTILINE):
        floor = int(first) if first else floor
        told |= {part_of(place): floor for place in re.findall(r"`([\w/.]+)`", places)}

    assert told == {part: FLOORS[part] for part in told}
    package = ROOT / "mqtune"
    parts = {path.name.removesuffix(".py") for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__init__", "__main__", "__pycache__"} == set(told)
