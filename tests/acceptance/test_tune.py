"""Programs that know nothing of mqtune are tuned from the command line: `mqtune tune`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pages import ROOT
from running import running_worker
from terminal import processes_in, terminal
from waiting import eventually
from walkthrough import walkthrough

from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.trial import TrialStatus
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

TUNE: Final = (sys.executable, "-m", "mqtune", "tune")
#: Longer than a run of these takes on a machine that runs ten other programs.
PATIENCE_S: Final = 150
TRIALS: Final = 2

#: A program with options of its own, which prints JSON lines.
ARGPARSE: Final = """
    import argparse, json

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--model", choices=["cnn", "mlp"], required=True)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    print("loading data")
    for epoch in range(1, given.epochs + 1):
        print(json.dumps({"epoch": epoch, "loss": given.lr / epoch + (given.model == "mlp")}))
    """
#: A program with Hydra's overrides, whose metric is in its log.
HYDRA: Final = """
    import logging, sys

    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    logging.basicConfig(level="INFO", format="[%(asctime)s][%(name)s][%(levelname)s] - %(message)s")
    assert given.pop("hydra.run.dir") == "."
    logging.info("val/loss=%r", float(given["model.lr"]) * int(given["+model.width"]))
    """
#: A program in C, with options of one letter, which prints text.
IN_C: Final = r"""
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>

    int main(int count, char **words) {
        double rate = 0;
        int width = 0, option, step;
        while ((option = getopt(count, words, "r:w:")) != -1) {
            if (option == 'r') rate = atof(optarg);
            else if (option == 'w') width = atoi(optarg);
            else return 2;
        }
        if (optind != count - 1) return 3;
        for (step = 1; step <= 3; step++)
            printf("step %d: error %.17g on %s\n", step, rate * width / step, words[optind]);
        return 0;
    }
    """


class Case(NamedTuple):
    """A program, as a user would tune it.

    Attributes:
        options: those of ``mqtune tune``.
        command: the program with its arguments.
        metric: the name of the metric.
        expected: the best value of a trial with a config.
        reports: how many reports a trial has.
    """

    options: tuple[str, ...]
    command: tuple[str, ...]
    metric: str
    expected: Callable[[dict[str, Any]], float]
    reports: int


CASES: Final = {
    "argparse": Case(
        ("--minimize", "loss", "--fixed", "model=cnn"),
        ("python", "train.py", "--epochs", "3", "--lr", "~loguniform(1e-5, 1e-1)", "--model", "~choice(cnn, mlp)"),
        "loss",
        lambda config: config["lr"] / 3,
        3,
    ),
    "hydra": Case(
        ("--minimize", "loss", "--pattern", r"val/loss=(?P<loss>\S+)"),
        ("python", "with_hydra.py", "hydra.run.dir=.", "model.lr=~uniform(1, 2)", "+model.width=~randint(1, 8)"),
        "loss",
        lambda config: config["model.lr"] * config["model.width"],
        1,
    ),
    "c": Case(
        ("--minimize", "error", "--pattern", r"step (?P<step>\d+): error (?P<error>\S+)", "--scheduler", "FIFO()"),
        ("./in_c", "-r", "~uniform(1, 2)", "-w~qrandint(8, 64, 8)", "data.txt"),
        "error",
        lambda config: config["r"] * config["w"] / 3,
        3,
    ),
}


def write(path: Path, code: str) -> Path:
    path.write_text(textwrap.dedent(code).lstrip())
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs."""
    folder = tmp_path_factory.mktemp("project")
    write(folder / "train.py", ARGPARSE)
    write(folder / "with_hydra.py", HYDRA)
    if compiler := shutil.which("cc") or shutil.which("gcc"):
        subprocess.run([compiler, "-o", folder / "in_c", write(folder / "in_c.c", IN_C)], check=True)
    return folder


@pytest.fixture(scope="module")
def broker_of_project(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server whose worker has the programs."""
    folder = tmp_path_factory.mktemp("worker")
    with EmbeddedServer.start(tmp_path_factory.mktemp("server"), binary=find_binary()) as server:  # noqa: SIM117
        with running_worker(server.url, folder / "worker.log", "--gpus", "0", "--slots", "2", code_root=project):
            yield server.url


def tuned(folder: Path, *command: str, broker: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TUNE, *command],
        cwd=folder, env={**os.environ, "MQTUNE_BROKER": broker}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip


def the_results() -> Results:
    (name,) = saved_experiments()
    return Results.load(name)


@pytest.mark.parametrize(("case", "place"), [("argparse", "here"), ("c", "here"), ("hydra", "fleet")])
def test_a_program_is_tuned_without_a_changed_line(
    case: str, place: str, project: Path, request: pytest.FixtureRequest
) -> None:
    options, command, metric, expected, reports = CASES[case]
    if case == "c" and not (project / "in_c").exists():
        pytest.skip("there is no C compiler")
    broker = request.getfixturevalue("broker_of_project") if place == "fleet" else ""

    done = tuned(project, "--max-trials", str(TRIALS), "--searcher", "random", *options, "--", *command, broker=broker)

    assert done.returncode == 0, done.stderr
    results = the_results()
    assert f"look at it again: mqtune show {results.name}" in done.stdout
    assert f"best {metric}=" in done.stderr
    assert [(each.status, each.error) for each in results] == [(TrialStatus.COMPLETED, "")] * TRIALS
    for result in results:
        assert result.value == pytest.approx(expected(result.config), rel=1e-9)
        assert len([*results.reports(result.id)]) == reports
        assert result.attempts[-1].worker.startswith("local-") is (place == "here")


def test_a_sweep_of_weights_and_biases_runs_as_it_is(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import json, os, sys

        given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
        config = json.loads(given["optimizer"])
        assert os.environ["SEED"] + os.environ["DATA"] == "7x"
        assert config["name"] in ("adam", "sgd")
        for epoch in range(int(given["epochs"])):
            print(json.dumps({"val/loss": config["lr"] * (epoch + 1)}))
        """,
    )
    write(
        tmp_path / "sweep.yaml",
        """
        program: train.py
        name: a demo
        description: all of both
        entity: me
        method: grid
        metric: {name: val/loss, goal: maximize}
        command: ["${env}", SEED=7, "${interpreter}", "${program}", "${args}"]
        parameters:
          epochs: {value: 2}
          optimizer:
            parameters:
              name: {values: [adam, sgd]}
              lr: {values: [1e-3, 0.5]}
        """,
    )

    done = tuned(tmp_path, "sweep.yaml", "--env", "DATA=x")

    assert done.returncode == 0, done.stderr
    assert "mqtune: entity: without effect, as W&B's service is not used" in done.stderr
    results = the_results()
    assert results.name.startswith("a-demo-")
    assert results.experiment.labels.notes == "all of both"
    assert {(each.config["optimizer"]["name"], each.value) for each in results} == {
        (name, 2 * lr) for name in ("adam", "sgd") for lr in (0.001, 0.5)
    }


def test_asha_stops_trials_by_the_step_in_the_output(tmp_path: Path) -> None:
    write(
        tmp_path / "slow.py",
        """
        import sys, time

        for epoch in range(1, 1000):
            print(f"epoch {epoch} loss {float(sys.argv[1])}")
            time.sleep(0.02)
        """,
    )
    pattern = r"epoch (?P<epoch>\d+) loss (?P<loss>\S+)"
    options = ("--minimize", "loss", "--pattern", pattern, "--max-t", "9", "--max-concurrent", "1")

    done = tuned(tmp_path, *options, "--", "python", "slow.py", "rate~grid_search(1, 2, 3, 4)")

    assert done.returncode == 0, done.stderr
    results = the_results()
    # The first one has the best loss of all.
    assert [(each.value, each.status.name) for each in results] == [
        (1, "COMPLETED"),
        *((loss, "EARLY_STOPPED") for loss in (2, 3, 4)),
    ]
    assert results["0001"].reason == "reached max_t=9"
    assert max(report.metrics["epoch"] for each in results for report in results.reports(each.id)) < 100


def test_the_same_command_continues_after_ctrl_c_and_with_more_trials_adds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mqtune_home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTUNE_BROKER", "")
    write(
        tmp_path / "slow.py",
        """
        import json, sys, time

        time.sleep(0.3)
        print(json.dumps({"loss": float(sys.argv[1])}))
        """,
    )

    def command(trials: int) -> tuple[str, ...]:
        options = ("--max-trials", str(trials), "--max-concurrent", "1", "--minimize", "loss", "--searcher", "random")
        return (*TUNE, *options, "--", "python", "slow.py", "rate~uniform(0, 1)")

    with terminal(command(4)) as screen:
        screen.wait_for("1 completed", PATIENCE_S)
        screen.press(b"\x03")
        assert screen.wait(PATIENCE_S) == 130
        assert "The same command continues the experiment, too." in screen.text
    eventually(lambda: not processes_in(mqtune_home), why="Ctrl-C left a process behind")
    halfway = the_results()
    assert halfway.outcome == "interrupted"
    assert 0 < len(halfway) < 4

    with terminal(command(4)) as screen:
        assert screen.wait(PATIENCE_S) == 0
        assert "best loss=" in screen.text
    finished = the_results()
    assert (finished.name, finished.outcome, len(finished)) == (halfway.name, "finished", 4)
    assert [each.config for each in finished][: len(halfway)] == [each.config for each in halfway]

    again = tuned(tmp_path, *command(4)[len(TUNE) :])
    assert (again.returncode, len(the_results())) == (0, 4)
    longer = "for more trials, give --max-trials with more than its 4; to start over: mqtune delete"
    assert f"experiment {finished.name} is finished; {longer}" in again.stdout

    more = tuned(tmp_path, *command(5)[len(TUNE) :])
    assert (more.returncode, len(the_results())) == (0, 5), more.stderr
    eventually(lambda: not processes_in(mqtune_home), why="a run left a process behind")


@pytest.mark.parametrize(
    ("code", "options", "messages"),
    [
        (
            'print(\'{"los": 0.5, "epoch": 1}\')',
            (),
            ("Its JSON lines have 'los', 'epoch'", '{"los": 0.5, "epoch": 1}', "--minimize or --maximize"),
        ),
        (
            'print("loss is 0.5")',
            ("--pattern", r"loss: (?P<loss>\S+)"),
            ("loss is 0.5", "Give a --pattern that finds it, such as 'loss[ =:]+"),
        ),
        ("", (), ("as it printed nothing",)),
    ],
)
def test_a_metric_that_never_appears_ends_the_run_with_the_output(
    code: str, options: tuple[str, ...], messages: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / "train.py", code)
    limits = ("--max-trials", "50", "--max-concurrent", "1", "--searcher", "random", "--minimize", "loss", *options)

    done = tuned(tmp_path, *limits, "--", "python", "train.py", "--lr", "~uniform(0, 1)")

    assert done.returncode == 1
    assert "trial 0001 has ended without the metric 'loss'" in done.stderr
    assert [message for message in messages if message not in done.stderr] == [], done.stderr
    assert len(the_results()) < 10


def test_a_program_that_fails_is_told_with_its_last_errors(tmp_path: Path) -> None:
    write(tmp_path / "train.py", 'raise SystemExit("no such option: --lr")')

    options = ("--max-trials", "2", "--searcher", "random", "--minimize", "loss")
    done = tuned(tmp_path, *options, "--", "train.py", "--lr", "~uniform(0, 1)")

    assert done.returncode == 1
    assert "2 of 2 trials failed" in done.stderr
    assert "no such option: --lr" in done.stderr


def test_a_program_that_always_fails_at_its_start_ends_the_run_early(tmp_path: Path) -> None:
    write(tmp_path / "train.py", 'raise SystemExit("no file data.csv")')
    command = ("--max-trials", "50", "--max-concurrent", "1", "--searcher", "random", "--minimize", "loss")

    done = tuned(tmp_path, *command, "--", "train.py", "--lr", "~uniform(0, 1)")

    assert done.returncode == 1
    assert "the first 3 trials have failed, and no trial has reported; the last lines of trial 0003:" in done.stderr
    assert "no file data.csv" in done.stderr
    assert "Correct the program or its arguments. The same command continues with other trials" in done.stderr
    assert len(the_results()) < 10

    # After the correction, the same command continues with the other trials.
    write(tmp_path / "train.py", "print('{\"loss\": 1}')")
    tried = len(the_results())
    done = tuned(tmp_path, *command[2:], "--max-trials", str(tried + 2), "--", "train.py", "--lr", "~uniform(0, 1)")

    assert done.returncode == 0, done.stderr
    assert the_results().experiment.counts[TrialStatus.COMPLETED] >= 2


def test_failures_do_not_end_a_run_in_which_another_trial_has_reported(tmp_path: Path) -> None:
    write(tmp_path / "train.py", """
        import os, sys

        if os.environ["MQTUNE_TRIAL"] > "0001":
            raise SystemExit("out of memory")
        print('{"loss": 1}')
        """)  # fmt: skip

    options = ("--max-trials", "6", "--max-concurrent", "1", "--searcher", "random", "--minimize", "loss")
    done = tuned(tmp_path, *options, "--", "train.py", "--lr", "~uniform(0, 1)")

    assert done.returncode == 0, done.stderr
    assert the_results().experiment.counts[TrialStatus.FAILED] == 5


def test_the_page_works_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", "")
    with walkthrough(tmp_path / "walk") as walked:
        walked.imports_optuna = False
        walked.follow(ROOT / "docs" / "how-to" / "tune.md")

    assert all(math.isfinite(Results.load(name).best.value) for name in saved_experiments())
