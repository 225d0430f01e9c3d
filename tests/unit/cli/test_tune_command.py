"""The plans that `mqtune tune` makes of its command line, and its errors before a start."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mqtune
from mqtune.cli import group
from mqtune.cli.tune import Options, Plan
from mqtune.core.errors import ConfigurationError, MqtuneError

LR = "~loguniform(1e-5, 1e-1)"


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    for name in ("train.py", "package/train.py", "train", "notes"):
        Path(name).touch()
    Path("train").chmod(0o755)
    Path("data.sh").write_text("#!/bin/sh\n")
    for name, first in (("run.sh", "#!/bin/sh"), ("train.R", "#!/usr/bin/env Rscript"), ("plain.sh", "echo")):
        Path(name).write_text(f"{first}\n")
        Path(name).chmod(0o755)


def plan(words: list[str], **options: Any) -> Plan:
    return Plan(words, Options(**{"minimize": ["loss"], "max_trials": 3, **options}))


def arguments(*words: str, **options: Any) -> dict[str, Any]:
    return plan([*(words or ["train.py"]), "--lr", LR], **options).arguments()


def said(*command: str) -> Result:
    return CliRunner().invoke(group, ["tune", *command])


@pytest.mark.parametrize(
    ("words", "program", "rest"),
    [
        (["python", "train.py", "-x"], "train.py", ["-x"]),
        (["python3.11", "-u", "train.py"], "train.py", []),
        ([sys.executable, "train.py"], "train.py", []),
        (["python", "-m", "package.train", "x"], "-m package.train", ["x"]),
        (["train.py"], "train.py", []),
        (["./train", "-u"], "./train", ["-u"]),
        (["sh", "run.sh", "x"], "run.sh", ["x"]),
        (["/bin/sh", "./run.sh"], "./run.sh", []),
        (["env", "SEED=1", "NAME=a=b", "python", "train.py"], "train.py", []),
        (["/usr/bin/env", "./train"], "./train", []),
    ],
)
def test_the_program_is_found_behind_its_interpreter(words: list[str], program: str, rest: list[str]) -> None:
    found = plan([*words, "--lr", LR])
    script = found.arguments()["trainable"]

    assert (script.program or f"-m {script.module}") == program
    assert [*script.items] == [(word,) for word in rest] + [("--lr", "{lr}")]
    assert found.env == ({"SEED": "1", "NAME": "a=b"} if "SEED=1" in words else None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"the program is missing; write it last: mqtune tune … -- python train.py"),
        (["trian.py"], r"there is no program 'trian.py'; do you mean train.py\?"),
        (["python", "trian.py"], r"there is no program 'trian.py'; do you mean train.py\?"),
        (["frobnicate"], "there is no program 'frobnicate'; give its path from here"),
        (["python"], "python has no script; write python train.py"),
        (["python", "-O", "train.py"], "leave -O out, or write a run.sh"),
        (["python", "notes"], "its name does not end with .py; rename it"),
        (["notes"], "is not executable; run: chmod"),
        (["sh", "plain.sh"], r"begin it with a line #!/usr/bin/env sh, and run: chmod \+x plain.sh"),
        (["sh", "data.sh"], r"run: chmod \+x data.sh"),
        (["sh", "train.R"], "begin it with a line #!/usr/bin/env sh"),
        (["sh", "-c", "true"], r'two lines, #!/bin/sh and exec sh -c true … "\$@"'),
        (["env", "-i", "python", "train.py"], "trials can't have options of env"),
    ],
)
def test_a_program_that_trials_can_not_run_is_refused_with_the_way_out(words: list[str], message: str) -> None:
    with pytest.raises(MqtuneError, match=message):
        mqtune.Tuner(**arguments(*words)) if words else plan(words)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["--lr", "1"], 2, "The program and its options come last, after --: mqtune tune --max-trials 50"),
        (["--max-trials", "3", "--", "train.py", "--lr", LR], 1, "the metric is missing; give --minimize METRIC"),
        (["--minimize", "loss", "--", "train.py", "--lr", LR], 1, "the number of trials is missing; give --max-trials N"),
        (["--minimize", "loss", "--maximize", "loss", "--", "train.py", "--lr", LR], 1, "give one of the options"),
        (["--minimize", "loss", "--", "train.py", "--lr", "0.1"], 1, "has no domain to search; write one in place of a value"),
        (["--minimize", "loss", "--", "train.py", "--lr", "~lognormal(1, 2)"], 2, "do you mean"),
        (["--minimize", "loss", "--pattern", r"(?P<los>\S+)", "--", "train.py", "--lr", LR], 1, "no --pattern has a group (?P<loss>…); their groups are 'los'"),
        (["--minimize", "val/loss", "--pattern", r"(?P<los>\S+)", "--", "train.py", "--lr", LR], 1, "name it val_loss, and give val_loss to --minimize"),
        (["--minimize", "1st/loss", "--pattern", r"(?P<los>\S+)", "--", "train.py", "--lr", LR], 1, "name it _1st_loss"),
        (["--minimize", "loss", "--pattern", "loss", "--", "train.py", "--lr", LR], 1, "name its group"),
        (["--minimize", "loss", "--fixed", "wd=1", "--", "train.py", "--lr", LR], 1, "--fixed wd: the command has no such parameter, only 'lr'"),
        (["--minimize", "loss", "--fixed", "lr", "--", "train.py", "--lr", LR], 1, "write --fixed NAME=VALUE"),
        (["--minimize", "loss", "--max-trials", "2", "--env", "PATH=x", "--", "train.py", "--lr", LR], 1, "PATH could make workers run other code"),
        (["--minimize", "loss", "--max-trials", "2", "--time-limit", "soon", "--", "train.py", "--lr", LR], 1, "write seconds, or 30m, 2h or 1d"),
        (["--minimize", "loss", "--max-trials", "2", "--name", "a b", "--", "train.py", "--lr", LR], 1, "can't name an experiment"),
        (["--minimize", "loss", "--scheduler", "Asha()", "--", "train.py", "--lr", LR], 2, "is not a scheduler"),
        (["--minimize", "loss", "--scheduler", "FIFO()", "--max-t", "3", "--", "train.py", "--lr", LR], 1, "--max-t is for ASHA"),
        (["--minimize", "loss", "--searcher", "magic", "--", "train.py", "--lr", LR], 2, "'magic' is not one of random, tpe"),
        (["none.yaml"], 1, "none.yaml can't be read"),
        ([], 1, "the program is missing; write it last"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_a_start(command: list[str], code: int, message: str, mqtune_home: Path) -> None:
    shown = said(*command)

    # Errors of mqtune's are printed by its main function.
    text = shown.output if code == 2 else str(shown.exception)
    assert (shown.exit_code, message in text) == (code, True), text
    assert not mqtune_home.exists()


def test_metrics_steps_and_limits_become_the_arguments_of_a_tuner() -> None:
    one = arguments(time_limit="1.5h", cpus=2, gpus=0.5, searcher="random")
    two = arguments(minimize=["loss"], maximize=["acc", "recall"])

    assert (one["metric"], one["mode"], one["scheduler"], one["searcher"]) == ("loss", "min", None, "random")
    assert one["stop"].describe()["seconds"] == 5_400
    assert one["resources"] == mqtune.Resources(cpus=2, gpus=0.5)
    assert one["trainable"].metrics == ("json",)
    assert (two["metric"], two["mode"]) == (["loss", "acc", "recall"], ["min", "max", "max"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_t": 27}, mqtune.ASHA(27)),
        ({"max_t": 27, "step": "epoch"}, mqtune.ASHA(27, time_attr="epoch")),
        ({"step": "epoch"}, mqtune.ASHA(10**12, time_attr="epoch", stop_last_trials=False)),
        (
            {"patterns": [r"step (?P<step>\d+) epoch (?P<epoch>\d+)", r"(?P<loss>\S+)"]},
            mqtune.ASHA(10**12, time_attr="step", stop_last_trials=False),
        ),
        ({"patterns": [r"iteration (?P<iteration>\d+): (?P<loss>\S+)"], "scheduler": "FIFO()"}, mqtune.FIFO()),
        ({"scheduler": "MedianStopping(grace_period=3)"}, mqtune.MedianStopping(grace_period=3)),
        ({"max_t": 9, "maximize": ["acc"]}, mqtune.MOASHA(9)),
        ({"patterns": [r"(?P<step>\d+)"], "minimize": ["step"]}, None),
    ],
)
def test_asha_stops_trials_whose_steps_are_known(options: dict[str, Any], expected: Any) -> None:
    found = arguments(**options)["scheduler"]

    assert (found and found.describe()) == (expected and expected.describe())


def test_the_same_command_has_the_same_name_and_another_one_another() -> None:
    name = arguments()["name"]
    changed = [
        arguments("python", "package/train.py")["name"],
        arguments("train.py", "--epochs", "3")["name"],
        plan(["train.py", "--lr", "~loguniform(1e-5, 1)"]).arguments()["name"],
        *(
            arguments(**options)["name"]
            for options in (
                {"minimize": ["los"]},
                {"minimize": [], "maximize": ["loss"]},
                {"patterns": [r"(?P<loss>\S+)"]},
                {"max_t": 9},
                {"max_t": 27},
                {"searcher": "random"},
                {"gpus": 1},
                {"cpus": 2},
                {"fixed": ["lr=0.1"]},
            )
        ),
    ]
    Path("package/train.py").rename("package/train2.py")
    os.chdir("package")
    Path("train.py").touch()
    changed.append(arguments()["name"])
    os.chdir("..")

    assert re.fullmatch(r"train-[0-9a-f]{8}", name)
    assert len({name, *changed}) == 1 + len(changed)
    # These may change when an experiment continues.
    for options in ({"max_trials": 9}, {"time_limit": "1h"}, {"variables": ["A=1"]}):
        assert arguments(**options)["name"] == name
    assert arguments("python", "train.py")["name"] == name


def test_a_program_in_a_folder_of_the_path_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", ".", prepend=os.pathsep)

    assert arguments("./train")["trainable"].program == "./train"


def test_a_pattern_named_json_reads_lines_of_json() -> None:
    assert arguments(patterns=["json"])["trainable"].metrics == ("json",)


def test_a_grid_needs_no_number_of_trials() -> None:
    assert plan(["train.py", "--m", "~grid_search(a, b)"], max_trials=None).arguments()["max_trials"] is None


def test_a_fixed_parameter_has_one_value() -> None:
    found = plan(["train.py", "--m", "~choice(a, b)", "--lr", LR], fixed=["lr=1e-3"]).arguments()

    assert found["space"] == {"m": mqtune.choice(["a", "b"]), "lr": 0.001}


def test_another_python_than_the_workers_is_told(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)

    (note,) = plan([str(python), "train.py", "--lr", LR]).notes

    assert note == (f"trials run by the Python of their worker (on this machine {sys.executable}), and not by {python}")
    assert plan([sys.executable, "train.py", "--lr", LR]).notes == []


def test_a_variable_is_set_by_an_option_or_before_the_program() -> None:
    found = plan(["env", "A=1", "B=2", "python", "train.py", "--lr", LR], variables=["B=3=4", "C="])

    assert found.env == {"A": "1", "B": "3=4", "C": ""}
    with pytest.raises(ConfigurationError, match="--env 'A' is not an assignment; write --env NAME=VALUE"):
        _ = plan(["train.py", "--lr", LR], variables=["A"]).env
