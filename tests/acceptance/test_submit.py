"""Scripts that are submitted: workers run them, as drivers, while their user is away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import Accounts
from click.testing import CliRunner, Result
from running import running_worker
from started import started
from waiting import all_gone, eventually, family_of

from mqtune.backends import EmbeddedServer, find_binary
from mqtune.cli import group
from mqtune.client import Client
from mqtune.core.errors import AccessDenied, ConfigurationError, InsufficientResources, MqtuneError, NameTaken
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect
from mqtune.results.logs import follow_driver
from mqtune.results.results import Results
from mqtune.services.submissions.board import MOST_SHORT, Submissions, SubmissionState

KEY = "the key of this test's workers"
DRIVES = ("--gpus", "0", "--slots", "0", "--drivers", "1")
REPORTS = 5
#: Drives an experiment of its submission's name, whose code goes along; it says who it is, and waits for a file to go on.
TUNE = f"""
import os, pathlib, sys, time
import mqtune
import parts.model

def train(config):
    for step in range({REPORTS}):
        time.sleep(float(config["pause"]))
        mqtune.report({{"loss": parts.model.loss(config["x"], step)}})

if __name__ == "__main__":
    print("arguments", sys.argv[1:], "in", os.getcwd(), flush=True)
    results = mqtune.Tuner(
        train, {{"x": mqtune.uniform(0, 1), "pause": float(sys.argv[1])}}, metric="loss", mode="min", max_trials=int(sys.argv[2]), searcher="random",
        process=mqtune.Process(bundle="."), run=mqtune.RunOptions(overwrite=True, progress=False),
    ).run()
    print("has", len(results), "trials", flush=True)
"""
WAITS = """
import time
print("waits", flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_CODE_KEY", KEY)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("submits"), binary=find_binary()) as started_server:
        yield started_server.url


@contextlib.contextmanager
def worker(
    broker: str, folder: Path, name: str, *options: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    empty = folder / name / "empty"
    empty.mkdir(parents=True)
    settings = {"MQTUNE_CODE_KEY": KEY, "MQTUNE_HOME": str(folder / name), **environment}
    log = folder / name / "w.log"
    with running_worker(broker, log, *options, name=name, code_root=empty, environment=settings) as process:
        yield process


@pytest.fixture(scope="module")
def workers(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        worker(server, folder, "host", "--gpus", "0", "--slots", "0", "--drivers", "2"),
        worker(server, folder, "runs", "--gpus", "0", "--slots", "2", "--accept-code"),
    ):
        yield server


@pytest.fixture
def fleet(workers: str) -> Iterator[str]:
    """The workers, whose driver slots are free again behind each test, also one that failed."""
    yield workers
    for each in json.loads(said(workers, "list", "--json")):
        if not is_over(workers, each["name"]):
            said(workers, "end", each["name"], "--now")
            eventually(lambda name=each["name"]: is_over(workers, name))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    (root / "parts").mkdir(parents=True)
    (root / "parts" / "__init__.py").touch()
    (root / "parts" / "model.py").write_text("def loss(x, step):\n    return x + 1 / (step + 1)\n")
    (root / "tune.py").write_text(TUNE)
    (root / "waits.py").write_text(WAITS)
    monkeypatch.chdir(root)
    return root


def said(broker: str, *arguments: str, code: int = 0, **environment: str) -> str:
    """Return the output of a command, and check its exit code."""
    done = run(broker, *arguments, **environment)
    if isinstance(done.exception, MqtuneError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def run(broker: str, *arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(group, arguments, env={"MQTUNE_BROKER": broker, **environment})


def state(broker: str, name: str) -> SubmissionState:
    with contextlib.closing(connect(broker)) as client:
        found = Submissions(client, patience_s=5).state(name)
    assert found is not None
    return found


def is_over(broker: str, name: str) -> bool:
    return state(broker, name).has_ended


def results(broker: str, name: str, folder: Path) -> Results:
    folder.mkdir()
    with Client(broker) as there:
        return there.experiment(name).results(folder)


def test_a_submitted_script_drives_its_experiment_and_its_output_and_exit_code_are_had_from_anywhere(
    fleet: str, project: Path, tmp_path: Path
):
    printed = said(fleet, "submit", "tune.py", "--name", "sweep", "--follow", "--", "0", "4", LOGNAME="ada")

    assert "arguments ['0', '4'] in " in printed
    assert "has 4 trials" in printed
    found = results(fleet, "sweep", tmp_path / "seen")
    assert [trial.status for trial in found.trials] == [TrialStatus.COMPLETED] * 4
    # It is its submitter's, wherever it runs.
    assert (found.experiment.owner.user, found.experiment.owner.host) == ("ada", socket.gethostname())
    again = said(fleet, "logs", "sweep", "driver")
    assert again in printed
    ended = state(fleet, "sweep")
    assert (ended.state, ended.how, ended.code, ended.run) == ("ended", "done", 0, 1)
    assert "finished" in said(fleet, "why", "sweep")


def test_a_script_without_a_tuner_just_runs_once_and_its_output_and_exit_code_are_the_followers(
    fleet: str, project: Path
):
    (project / "bad.py").write_text("raise ValueError('there is no data')\n")
    (project / "exits.py").write_text("import sys\nprint('says', 1)\nsys.exit(7)\n")

    printed = said(fleet, "submit", "bad.py", "--name", "bad", "-f", code=1)
    assert 'bad.py", line 1' in printed
    assert "script_process" not in printed
    assert "its script has failed: exit code 1: ValueError: there is no data" in said(fleet, "why", "bad")
    with pytest.raises(ConfigurationError, match="has not begun yet; a script was submitted for it: mqtune why bad"):
        said(fleet, "show", "bad")
    assert state(fleet, "bad").run == 1

    # An ended submission's name is free again.
    assert "says 1" in said(fleet, "submit", "exits.py", "--name", "bad", "-f", code=7)
    assert (state(fleet, "bad").run, state(fleet, "bad").code) == (2, 7)
    listed = {each["name"]: each["state"] for each in json.loads(said(fleet, "list", "--json"))}
    assert "exit code 7: says 1" in listed["bad"]


#: Is killed, finds no server, and finds its experiment driven by another, in one run after the other.
DIES = """
import os, signal, sys
import mqtune.core.errors as errors

print("dies", flush=True)
with open(sys.argv[1], "a") as runs:
    runs.write("x")
    number = runs.tell()
if number == 1:
    os.kill(os.getpid(), signal.SIGKILL)
raise errors.BrokerUnavailable("away") if number == 2 else errors.NameTaken("driven", left_s=1)
"""


def test_a_script_that_is_killed_or_finds_no_server_runs_again_and_not_for_ever(
    fleet: str, project: Path, tmp_path: Path
):
    (project / "dies.py").write_text(DIES)
    printed = said(fleet, "submit", "dies.py", "--name", "dies", "-f", "--", str(tmp_path / "runs"), code=1)
    assert "dies\n" in printed
    assert (state(fleet, "dies").run, (tmp_path / "runs").read_text()) == (MOST_SHORT, "x" * MOST_SHORT)
    assert "it was lost 3 times in a row soon after it began" in printed


def test_a_name_is_submitted_once_at_a_time_waits_for_a_slot_and_is_stopped(fleet: str, project: Path):
    names = ["one", "two", "three"]
    for name in names:
        said(fleet, "submit", "waits.py", "--name", name)
    with pytest.raises(NameTaken, match=r"submitted as 'one' (runs on host@|waits for a driver slot)"):
        said(fleet, "submit", "waits.py", "--name", "one")
    eventually(lambda: [state(fleet, name).state for name in names] == ["running", "running", "waiting"])
    eventually(lambda: "both matching driver slots are busy" in said(fleet, "why", "three"))
    assert "has run on host@" in said(fleet, "why", "two")
    assert "2 of 2" in said(fleet, "fleet", "--only", "workers")
    with pytest.raises(NameTaken, match=r"runs on host@.*mqtune end two"):
        said(fleet, "delete", "two", "--yes")

    with pytest.raises(ConfigurationError, match=r"submitted as 'one': this is .*--force"):
        said(fleet, "end", "one", LOGNAME="somebody-else")
    for name in names:
        said(fleet, "end", name)

    eventually(lambda: all(is_over(fleet, name) for name in names))
    assert [state(fleet, name).how for name in names] == ["stopped"] * 3
    assert state(fleet, "three").run == 0
    assert "stopped: by " in said(fleet, "why", "one")
    said(fleet, "delete", "three", "--yes")
    with pytest.raises(ConfigurationError, match="no experiment 'three'"):
        said(fleet, "why", "three")


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Have started programs obey Ctrl-C, also if the tests run in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_stops_following_and_nothing_else_and_stopping_the_experiment_ends_the_script(
    fleet: str, project: Path, tmp_path: Path
):
    follow = [sys.executable, "-m", "mqtune", "submit", "tune.py", "--name", "followed", "-f", "--", "0.1", "1000"]
    log = tmp_path / "follows.log"
    with started(follow, {"MQTUNE_BROKER": fleet, "MQTUNE_CODE_KEY": KEY}, log, cwd=project) as follower:
        eventually(lambda: "arguments" in log.read_text())
        follower.send_signal(signal.SIGINT)
        assert follower.wait(10) == 128 + signal.SIGINT
    assert "followed continues" in log.read_text()
    eventually(lambda: "trials are running" in run(fleet, "why", "followed").output)
    assert "is ending" in said(fleet, "end", "followed", "--now")
    eventually(lambda: is_over(fleet, "followed"))
    assert state(fleet, "followed").how == "done"
    assert results(fleet, "followed", tmp_path / "seen").outcome == "finished"


def test_submit_local_runs_the_script_here(project: Path):
    (project / "here.py").write_text(
        "import os, sys\nfrom mqtune.core.submission import this_submission\n"
        "print(os.getppid(), sys.argv[1:], this_submission() and this_submission().name)\n"
    )
    for name in (None, "sweep"):
        named = ["--name", name] if name else []
        command = [sys.executable, "-m", "mqtune", "submit", "here.py", "--local", *named, "--", "--fast"]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout == f"{os.getpid()} ['--fast'] {name}\n"


def test_bad_submissions_are_refused_at_once(fleet: str, own_broker: str, project: Path):
    (project / "run.sh").touch()
    for broker, asked, words in (
        (own_broker, "waits.py", r"no worker of this fleet offers driver slots.*mqtune worker --drivers"),
        (fleet, "run.sh", r"run.sh is not a Python script"),
        (fleet, "waits.py --bundle parts", r"is not in --bundle"),
        (fleet, "waits.py --name a/b", r"'a/b' can't be an experiment's name"),
    ):
        with pytest.raises((ConfigurationError, InsufficientResources), match=words):
            said(broker, "submit", *asked.split())
    with pytest.raises(ConfigurationError, match=r"mqtune submit needs MQTUNE_CODE_KEY"):
        said(fleet, "submit", "waits.py", MQTUNE_CODE_KEY="")


def test_a_script_that_is_not_signed_for_a_worker_waits_unread_for_one_that_it_is_signed_for(
    own_broker: str, project: Path, tmp_path: Path
):
    (project / "marks.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    with worker(own_broker, tmp_path, "first", *DRIVES):
        said(own_broker, "submit", "marks.py", "--name", "other", MQTUNE_CODE_KEY=KEY[::-1])
        eventually(lambda: "'first@" in said(own_broker, "why", "other"))
        why = said(own_broker, "why", "other")
        assert "may not run it: it is not signed with the MQTUNE_CODE_KEY of the worker; no other worker offers" in why
        assert "end it: mqtune end other; then submit it with the MQTUNE_CODE_KEY of a worker" in why
        assert b"first@" in next(follow_driver("other", own_broker))
        # A refused script does not delay a script that the worker may run.
        said(own_broker, "submit", "marks.py", "--name", "mine")
        eventually(lambda: is_over(own_broker, "mine"))
        assert (state(own_broker, "other").state, (tmp_path / "ran").read_text()) == ("waiting", "x")
        with worker(own_broker, tmp_path, "second", *DRIVES, MQTUNE_CODE_KEY=KEY[::-1]):
            eventually(lambda: is_over(own_broker, "other"))

    found = state(own_broker, "other")
    assert (found.how, found.run, found.worker.partition("@")[0]) == ("done", 1, "second")
    assert (tmp_path / "ran").read_text() == "xx"


def test_when_the_machine_of_a_driver_dies_another_goes_on_and_nothing_is_lost_or_done_twice(
    own_broker: str, project: Path, tmp_path: Path
):
    with (
        worker(own_broker, tmp_path, "first", *DRIVES) as first,
        worker(own_broker, tmp_path, "runs", "--gpus", "0", "--slots", "2", "--accept-code"),
    ):
        said(own_broker, "submit", "tune.py", "--name", "survives", "--", "0.4", "12")
        eventually(lambda: "2 trials are running" in run(own_broker, "why", "survives").output)
        before = results(own_broker, "survives", tmp_path / "before").experiment
        family = family_of(first.pid)
        with worker(own_broker, tmp_path, "second", *DRIVES):
            first.send_signal(signal.SIGKILL)
            first.wait()
            eventually(lambda: all_gone(family))
            eventually(lambda: state(own_broker, "survives").run == 2, 2 * Timing().lock_s)
            eventually(lambda: is_over(own_broker, "survives"), 60)

        last = state(own_broker, "survives")
        assert (last.how, last.code, last.worker.partition("@")[0]) == ("done", 0, "second")
        found = results(own_broker, "survives", tmp_path / "after")
    # The script says overwrite=True, which is for its first run alone.
    assert found.experiment.created_at == before.created_at
    configs = [trial.config for trial in before.trials.values()]
    assert [trial.config for trial in found.trials][: len(configs)] == configs
    assert [trial.status for trial in found.trials] == [TrialStatus.COMPLETED] * 12
    # The worker that ran the trials has lived.
    assert [len(trial.attempts) for trial in found.trials] == [1] * 12
    assert [trial.trial.reports for trial in found.trials] == [REPORTS] * 12
    # The first machine's output is gone with it. The end of the second's is on the server.
    assert "has 12 trials" in said(own_broker, "logs", "survives", "driver")


@pytest.fixture
def teams(own_broker: str) -> Iterator[Accounts]:
    with contextlib.closing(Accounts(own_broker)) as accounts:
        yield accounts


def test_teams_keep_apart_and_who_may_not_drive_may_neither_submit_nor_offer_slots(
    teams: Accounts, project: Path, tmp_path: Path
):
    drives = {team: teams.make("driver", team, experiments=f"{team}-*") for team in ("team-a", "team-b")}
    works = {team: teams.make("worker", f"{team}-w", experiments=f"{team}-*") for team in drives}
    watches = teams.make("monitor", "team-a-m", experiments="team-a-*")

    command = [sys.executable, "-m", "mqtune", "worker", *DRIVES, "--experiments", "team-a-*"]
    environment = {**os.environ, "MQTUNE_BROKER": works["team-a"]}
    refused = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "--drivers 1: scripts drive experiments, and --broker has no driver's account" in refused.stderr
    options = [*DRIVES, "--experiments", "team-a-*", "--driver-broker", drives["team-a"]]
    teams.refused()
    with worker(works["team-a"], tmp_path, "a", *options):
        with pytest.raises(InsufficientResources, match=r"slots to 'team-b-x', only to team-a-\*"):
            said(drives["team-b"], "submit", "waits.py", "--name", "team-b-x")
        (project / "who.py").write_text("import os\nprint(os.environ['MQTUNE_BROKER'].split('//')[1].split(':')[0])\n")
        assert "\nteam-a\n" in said(drives["team-a"], "submit", "who.py", "--name", "team-a-x", "-f")
        assert not teams.refused()
        for who, name in (
            (drives["team-b"], "team-a-y"),
            (works["team-a"], "team-a-y"),
            (watches, "team-a-y"),
        ):
            with pytest.raises(AccessDenied):
                said(who, "submit", "who.py", "--name", name)
        assert "has ended" in said(watches, "why", "team-a-x")


def test_a_worker_that_is_told_to_go_gives_its_scripts_back_and_an_operator_stops_what_another_has_submitted(
    teams: Accounts, project: Path, tmp_path: Path
):
    driver, operator = teams.make("driver"), teams.make("operator")
    with worker(teams.url, tmp_path, "goes", *DRIVES) as goes:
        said(driver, "submit", "waits.py", "--name", "theirs", LOGNAME="ada")
        eventually(lambda: state(teams.url, "theirs").state == "running")
        goes.send_signal(signal.SIGTERM)
        goes.wait(20)
    moved = state(teams.url, "theirs")
    assert (moved.state, moved.run) == ("waiting", 1)
    with worker(teams.url, tmp_path, "stays", *DRIVES):
        eventually(lambda: state(teams.url, "theirs").run == 2)
        assert state(teams.url, "theirs").worker.startswith("stays@")
        said(operator, "end", "theirs", LOGNAME="olaf")
        eventually(lambda: is_over(teams.url, "theirs"))
    assert state(teams.url, "theirs").reason.startswith("by olaf@")
