"""Definitions of experiments: fixed options, continuing without the script, and defaults."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from bench import writer_of

import mqtune
from mqtune import RandomSearcher, Space
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import ConfigurationError, MessageVersionError, NameTaken
from mqtune.core.events import ExperimentCreated, decode_event
from mqtune.core.trial import TrialId
from mqtune.core.version import install_command
from mqtune.driver import BrokerDeployment, DefinitionWriter, Settings, attached
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile, RedisJournal

RECORDED: Final = Path(__file__).parents[2] / "definitions" / "definitions.v1.json"

SPACE: Final[dict[str, Any]] = {
    "lr": mqtune.loguniform(1e-5, 1),
    "net": {"width": mqtune.qrandint(8, 64, 8)},
    "depth": 3,
}


def trainable(config: dict[str, Any]) -> None:
    """It is named, and never called."""


def stops(trial: object, report: object) -> bool:
    """It is named, and never called."""
    return False


class Reusable(mqtune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}

    def reset_config(self, config: dict[str, Any]) -> bool:
        return True


class MyScheduler(mqtune.ASHA):
    pass


class MySearcher(mqtune.RandomSearcher):
    pass


def many() -> dict[str, dict[str, Any]]:
    """Arguments of tuners, by the name under which what they say is recorded."""
    return {
        "plain": {},
        "seed": {"seed": 7},
        "grid": {"space": {"a": mqtune.grid_search([1, 2, 3]), "b": mqtune.uniform(0, 1)}},
        "conditions": {
            "space": {
                "opt": mqtune.choice([{"name": "adam", "lr": mqtune.uniform(0, 1)}, mqtune.randint(1, 3), None]),
                "grid": mqtune.grid_search([{"a": mqtune.grid_search([1, 2])}, 3]),
                "layers": [mqtune.uniform(0, 1), 4, {"width": mqtune.randint(1, 4)}],
            }
        },
        "points": {"searcher": mqtune.InitialPoints([{"lr": 0.1}, {"net": {"width": 16}}])},
        "points of a grid": {
            "space": {"a": mqtune.grid_search([1, 2]), "b": mqtune.uniform(0, 1)},
            "searcher": mqtune.InitialPoints([{"a": 1}, {"a": 2}, {"b": 0.5}]),
        },
        "searcher": {"searcher": mqtune.RandomSearcher(Space({"lr": mqtune.uniform(0, 1)}), 9)},
        "own searcher": {"searcher": MySearcher(Space(SPACE), 9), "scheduler": MyScheduler(9)},
        "limits": {
            "max_trials": 7,
            "run": mqtune.RunOptions(max_concurrent=3),
            "failures": mqtune.Failures(max_failures=-1, fail_fast="raise"),
            "process": mqtune.Process(timeout_s=1.5),
        },
        "scheduler": {
            "scheduler": mqtune.PBT(4, {"lr": mqtune.loguniform(1e-5, 1)}, seed=3),
            "process": mqtune.Process(sync="lockstep"),
        },
        "asha in brackets": {"scheduler": mqtune.ASHA(27, brackets=2, stop_last_trials=False)},
        "promotion by cost": {"scheduler": mqtune.PromotionASHA(27, cost="time_total_s")},
        "hyperband to the end": {"scheduler": mqtune.HyperBand(27, stop_last_trials=False)},
        "quarter": {"scheduler": mqtune.MedianStopping(cutoff=0.25, min_run_s=60)},
        "pasha": {"scheduler": mqtune.PASHA(27)},
        "rush": {"scheduler": mqtune.RUSH(27, 2)},
        "several": {"metric": ["loss", "speed"], "mode": ["min", "max"], "scheduler": mqtune.MOASHA(27)},
        "bounds": {"metric": ["loss", "latency<=10", "room >= 0.5"], "searcher": "tpe"},
        "counts": {"stop": mqtune.schedulers.stopping.TrialsEnded(9) | mqtune.schedulers.stopping.ReportsReceived(500)},
        "stop": {"stop": mqtune.TimeLimit(60) | {"loss": 0.1} | mqtune.TrialPlateau()},
        "stop function": {"stop": stops, "mode": "max", "metric": "accuracy"},
        "retention": {
            "checkpoints": mqtune.Checkpoints(keep_last=None, keep_best=2, score="accuracy", mode="max", delete=True)
        },
        "retention of some": {"checkpoints": mqtune.Checkpoints(keep_last=3, delete="all")},
        "retention of the best trials": {"checkpoints": mqtune.Checkpoints(delete=True, keep_trials=3)},
        "resources": {"resources": mqtune.Resources(gpus=0.5, cpus=3, gpu_memory_gb=12, tags=["a100"])},
        "store": {
            "checkpoints": mqtune.Checkpoints("s3://bucket/folder"),
            "run": mqtune.RunOptions(queue_trials=False),
        },
        "loss": {"failures": mqtune.Failures(on_driver_loss="stop", driver_loss_grace_s=5)},
        "working directory": {
            "process": mqtune.Process(
                env={"HF_HOME": "/data/hf"}, working_dir="code", keep_working_dir="failed", code="strict"
            )
        },
        "process": {
            "process": mqtune.Process(start_method="spawn", pass_config="json"),
            "failures": mqtune.Failures(accept_no_report=True),
        },
        "reports": {"failures": mqtune.Failures(metric_required="eventually", on_invalid_report="fail")},
        "reuse": {"tuned": Reusable, "process": mqtune.Process(reuse=True)},
        "local": {"backend": SimpleNamespace(local_slots=3)},
    }


@pytest.fixture
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MQTUNE_BROKER", "MQTUNE_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("no_broker")
@pytest.mark.parametrize("name", many())
def test_a_definition_is_as_it_was_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqtune.driver.setup.definition.program_arguments", lambda: ["train.py", "--epochs", "3"])

    found = decode_value(encode_value(tuned(**{"seed": 1, **many()[name]}).definition(None)))

    # Others differ between machines and versions.
    of_the_machine = {"code_root", "code_files", "version"}
    assert {key: found[key] for key in found.keys() - of_the_machine} == recorded(name)


def recorded(name: str) -> dict[str, Any]:
    """Return a definition as a driver reads it today."""
    return as_read(json.loads(RECORDED.read_text())[name])


def as_read(definition: dict[str, Any]) -> dict[str, Any]:
    created = decode_event(ExperimentCreated(name="x", definition=definition, at=1.0).encode())
    assert isinstance(created, ExperimentCreated)
    return created.definition


def test_an_experiment_of_version_0_1_continues_with_the_same_options(kept: dict[str, bytes]) -> None:
    old = tuned(process=mqtune.Process(working_dir="code")).definition(None)
    # Trials had no arguments and variables then.
    for name in ("timeout_s", "metric_required", "on_invalid_report", "arguments", "env"):
        del old[name]
    old |= {"ttl_s": 1.5, "metric_from": "later", "on_odd_report": "fail"}
    limit = {"rule": "time_limit", "seconds": 60, "of": "driver"}
    old["stop"] = {"rule": "any", "rules": [limit, {"rule": "metric_maximum", "metric": "loss", "maximum": 9}]}
    kept["x"] = encode_value(old)

    again, _ = attach()

    assert (again.settings.process.timeout_s, again.settings.process.working_dir) == (1.5, "code")
    assert again.settings.failures.metric_required == "eventually"
    assert again.settings.failures.on_invalid_report == "fail"
    # A changed rule would not decide on earlier reports.
    assert again.definition(kept["x"]) == {**as_read(old), "arguments": [], "env": None}


BROKER = "redis://:secret@nowhere:6379/0"


def other_trainable(config: dict[str, Any]) -> None:
    """It is named, and never called."""


def tuned(**options: Any) -> DefinitionWriter:
    """Writes the definition of a script's experiment."""
    return writer_of(options.pop("tuned", trainable), options.pop("space", SPACE), **options)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The definitions on the server, by the names of their experiments."""
    known: dict[str, bytes] = {}

    def definition(place: BrokerDeployment, name: str, folder: Path) -> dict[str, Any] | None:
        return as_read(decode_value(known[name])) if name in known else None

    monkeypatch.setattr(BrokerDeployment, "definition", definition)
    monkeypatch.setattr(BrokerDeployment, "experiments", lambda place: sorted(known))
    monkeypatch.setattr(BrokerDeployment, "is_private", True)
    return known


def attach(name: str = "x", **given: Any) -> tuple[DefinitionWriter, BrokerDeployment]:
    nothing = dict.fromkeys(["trainable", "space", "searcher", "scheduler", "stop", "resources", "max_trials"])
    arguments = attached(name, **{"backend": BROKER, "run": mqtune.RunOptions(), **nothing, **given})
    settings = Settings.of(**arguments)
    assert isinstance(settings.backend, BrokerDeployment)
    return DefinitionWriter(settings), settings.backend


#: Arguments that a definition has all of, on a broker.
KEPT = {name: each for name, each in many().items() if name not in ("own searcher", "stop function", "local")}


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
def test_what_was_created_is_gone_on_with_unchanged(kept: dict[str, bytes], options: dict[str, Any]) -> None:
    script = tuned(**options)
    kept["x"] = encode_value(script.definition(None))

    again, _ = attach()

    assert encode_value(again.definition(kept["x"])) == kept["x"]
    seed = decode_value(kept["x"])["seed"]
    theirs, ours = script.settings.new_searcher(seed), again.settings.new_searcher(seed)
    assert [ours.suggest(TrialId("0001")) for _ in range(5)] == [theirs.suggest(TrialId("0001")) for _ in range(5)]
    assert again.settings.code_root == script.settings.code_root
    assert again.settings.on_loss == script.settings.on_loss


def test_an_experiment_whose_store_has_moved_continues_with_the_store_where_it_is_now(kept: dict[str, bytes]) -> None:
    def at(store: str) -> DefinitionWriter:
        writer = tuned(seed=1)
        writer.store = store
        return writer

    began = encode_value(at("file:///old/x/checkpoints#mqtune-store=8b65").definition(None))
    moved = "file:///new/x/checkpoints#mqtune-store=8b65"

    assert at(moved).definition(began)["store"] == moved
    with pytest.raises(NameTaken, match="store: "):
        at("file:///new/x/checkpoints#mqtune-store=77aa").definition(began)


def test_a_store_that_was_missing_is_the_only_difference(tmp_path: Path) -> None:
    began = encode_value(tuned(seed=1).definition(None))
    later = tuned(seed=1, checkpoints=mqtune.Checkpoints(tmp_path))
    later.store = f"{tmp_path.as_uri()}#mqtune-store=77aa"

    with pytest.raises(NameTaken) as caught:
        later.definition(began)

    assert [line.partition(":")[0].strip() for line in str(caught.value).splitlines()][1:-1] == ["store"]


def by_width(config: dict[str, Any]) -> mqtune.Resources:
    return mqtune.Resources(gpus=2 if config["net"]["width"] > 32 else 1)


def test_a_function_by_which_trials_ask_for_resources_is_given_again(kept: dict[str, bytes]) -> None:
    kept["x"] = encode_value(tuned(resources=by_width).definition(None))

    with pytest.raises(ConfigurationError, match=r"function by_width, .* your code alone: .*attach\(…, resources=…\)"):
        attach()
    again, _ = attach(resources=by_width)

    assert again.definition(kept["x"])["resources"] == {"by_config": "by_width"}
    assert encode_value(again.definition(kept["x"])) == kept["x"]
    other = tuned(resources=mqtune.Resources(gpus=1))
    with pytest.raises(NameTaken, match=r"resources: \{'by_config': 'by_width'\} → "):
        other.definition(kept["x"])


def test_who_may_write_to_a_shared_server_does_not_choose_where_code_is_taken_from(
    kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept["x"] = encode_value(tuned().definition(None))
    monkeypatch.setattr(BrokerDeployment, "is_private", False)
    monkeypatch.chdir(tmp_path)

    again, _ = attach()

    assert again.settings.code_root == tmp_path


@pytest.mark.parametrize(
    "change",
    [{"space": {"x": 5}}, {"retention": [5]}, {"trainable": 7}, {"resources": 7}, {"timeout_s": "long"}, {"stop": 3}],
    ids=repr,
)
def test_a_definition_that_makes_no_sense_is_a_clear_error(kept: dict[str, bytes], change: dict[str, Any]) -> None:
    definition = tuned().definition(None)
    kept["x"] = encode_value(definition | change)

    with pytest.raises(ConfigurationError, match=r"timeout_s|invalid|experiment 'x'"):
        attach()
    del definition["retention"]
    kept["x"] = encode_value(definition)
    with pytest.raises(ConfigurationError, match="of experiment 'x' lacks 'retention'; run its script instead"):
        attach()


@pytest.mark.parametrize("bytes_", [b"", b"\xc1", b"no definition", b"\x01", b"\x91\x01"], ids=repr)
def test_a_definition_that_can_not_be_read_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, bytes_: bytes) -> None:
    client = SimpleNamespace(get_connection_kwargs=dict)
    server = SimpleNamespace(client=client, url=BROKER, is_private=False)
    monkeypatch.setattr(BrokerDeployment, "connect", lambda place, folder: server)
    monkeypatch.setattr(RedisJournal, "definition", lambda journal: bytes_)

    with pytest.raises(MessageVersionError, match="experiment 'x' has"):
        attach()


def test_what_is_given_takes_the_place_of_what_was_kept(kept: dict[str, bytes]) -> None:
    kept["x"] = encode_value(tuned(scheduler=MyScheduler(9), stop=lambda trial, report: False).definition(None))
    scheduler, rule = MyScheduler(9), mqtune.TimeLimit(5)

    again, _ = attach(scheduler=scheduler, stop=rule, max_trials=77, trainable=trainable)

    assert again.settings.scheduler is scheduler
    assert (again.settings.stop, again.settings.max_trials) == (rule, 77)
    again.definition(kept["x"])


def test_a_refused_argument_ends_the_connection(kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BrokerDeployment] = []
    monkeypatch.setattr(BrokerDeployment, "close", lambda place: closed.append(place))
    kept["x"] = encode_value(tuned().definition(None))

    with pytest.raises(ConfigurationError, match="max_trials=0"):
        mqtune.Tuner.attach("x", backend=BROKER, max_trials=0)
    assert len(closed) == 1


def test_another_trainable_or_scheduler_is_refused(kept: dict[str, bytes]) -> None:
    kept["x"] = encode_value(tuned(scheduler=mqtune.ASHA(9), seed=2).definition(None))

    with pytest.raises(NameTaken, match=r"\n  scheduler.max_t: 9 → 27\n"):
        attach(scheduler=mqtune.ASHA(27))[0].definition(kept["x"])
    with pytest.raises(NameTaken) as caught:
        tuned(scheduler=mqtune.ASHA(9), seed=3).definition(kept["x"])
    assert [line.strip() for line in str(caught.value).splitlines()][1:-1] == ["seed: 2 → 3"]
    ways_out = str(caught.value).splitlines()[-1]
    assert re.findall(r"RunOptions\(overwrite=True\)|`mqtune \w+ x`|a new name, such as 'x-2'", ways_out) == [
        "RunOptions(overwrite=True)", "`mqtune delete x`", "a new name, such as 'x-2'", "`mqtune drive x`"
    ]  # fmt: skip
    with pytest.raises(NameTaken, match=r"trainable.name: "):
        attach(trainable=other_trainable)[0].definition(kept["x"])


def test_the_important_differences_come_first_few_are_named_and_no_drawn_seed(kept: dict[str, bytes]) -> None:
    kept["x"] = encode_value(tuned(scheduler=mqtune.ASHA(9)).definition(None))

    def lines(**options: Any) -> list[str]:
        with pytest.raises(NameTaken) as caught:
            tuned(**options).definition(kept["x"])
        return [line.strip() for line in str(caught.value).splitlines()][1:-1]

    assert lines(scheduler=mqtune.FIFO()) == ["scheduler: 'asha' → 'fifo'"]
    other = mqtune.ASHA(27, grace_period=3, reduction_factor=4, brackets=2)
    resources = mqtune.Resources(cpus=3)
    first, *others, more = lines(scheduler=other, resources=resources, mode="max", metric="accuracy", seed=3)
    assert (first, len(others)) == ("metric: 'loss' → 'accuracy'", 4)
    assert re.fullmatch(r"… and \d more", more)
    assert not [line for line in lines(searcher=MySearcher(Space(SPACE), 9)) if "seed" in line]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"scheduler": MyScheduler(9)}, "scheduler"),
        ({"stop": lambda trial, report: False}, "stop"),
        ({"space": {"a": 1, "b": mqtune.sample_from(lambda config: config["a"])}}, "space"),
        ({"space": {"a": mqtune.choice([1, {"b": mqtune.sample_from(lambda config: 2)}])}}, "space"),
        ({"space": mqtune.Space(SPACE, constraint=lambda config: config["lr"] < 0.5)}, "space"),
    ],
)
def test_what_only_the_script_has_is_asked_for(kept: dict[str, bytes], options: dict[str, Any], argument: str) -> None:
    kept["x"] = encode_value(tuned(**options).definition(None))

    with pytest.raises(ConfigurationError, match=rf"run the script again, or Tuner.attach\(…, {argument}=…\)"):
        attach()


def test_a_space_with_a_constraint_is_given_again(kept: dict[str, bytes]) -> None:
    def small(config: dict[str, Any]) -> bool:
        return bool(config["lr"] < 0.5)

    space = mqtune.Space(SPACE, constraint=small)
    kept["x"] = encode_value(tuned(space=space, seed=2).definition(None))

    assert attach(space=space)[0].definition(kept["x"])["space"] == space.describe()
    with pytest.raises(NameTaken, match=r"space./constraint: {'function': 'small'} → \(unset\)"):
        tuned(space=SPACE, seed=2).definition(kept["x"])


def test_an_unknown_name_on_a_broker_is_an_error_that_says_what_there_is(kept: dict[str, bytes]) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no experiment 'x' on .*; there are none"):
        attach()
    kept.update({f"e{n:02}": b"\x80" for n in range(22)})

    with pytest.raises(ConfigurationError, match=r"there are 'e00', 'e01', .*, 'e19' and 2 more"):
        attach()


def save_copy(home: Path, name: str, definition: dict[str, Any]) -> None:
    (home / name).mkdir(parents=True)
    copy = JournalFile(home / name / JOURNAL_FILE)
    copy.begin([Entry("1-0", ExperimentCreated(name=name, definition=definition, at=1.0).encode())])
    copy.close()


@pytest.mark.usefixtures("no_broker")
def test_without_a_broker_an_unknown_name_or_an_experiment_of_a_broker_is_an_error(mqtune_home: Path) -> None:
    save_copy(mqtune_home, "other", {})

    with pytest.raises(ConfigurationError, match=f"no experiment 'x' in {mqtune_home}; there is 'other'"):
        attach(backend=None)
    assert not (mqtune_home / "x").exists()
    save_copy(mqtune_home, "x", {})
    with pytest.raises(ConfigurationError, match="'x' did not run on this machine alone; give its broker"):
        attach(backend=None)


#: As it is before the tests have random search for the default.
DEFAULT = Settings.default_searcher

ONE_NUMBER = {"x": mqtune.uniform(0, 1)}


def curve(config: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": config["x"] / (step + 1), "size": config["x"]}) for step in range(9)]


def chosen(space: dict[str, Any] = ONE_NUMBER, **options: Any) -> mqtune.Tuner:
    usual: dict[str, Any] = {"metric": "loss", "mode": "min", "name": "x", "max_trials": 3}
    return mqtune.Tuner(curve, space, backend=mqtune.Simulated(curve, slots=2), **{**usual, **options})


def described(**options: Any) -> dict[str, Any]:
    return writer_of(curve, **{"space": ONE_NUMBER, **options}).definition(None)


@pytest.fixture
def the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the default searcher that users have."""
    monkeypatch.setattr(Settings, "default_searcher", DEFAULT)


@pytest.fixture
def no_optuna(the_default: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Optuna not be installed."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    if (loaded := sys.modules.get("mqtune.integrations.optuna")) is not None:
        # Another test has registered it.
        monkeypatch.delattr(loaded.OptunaSearcher, "kind")
        monkeypatch.delitem(sys.modules, "mqtune.integrations.optuna")


@pytest.mark.usefixtures("the_default")
def test_without_a_searcher_it_is_tpe_and_the_first_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    results = chosen().run()

    first = capsys.readouterr().err.splitlines()[0]
    assert first == "x · searcher tpe; no scheduler, each trial runs to its end"
    assert len(results) == 3


@pytest.mark.usefixtures("no_optuna")
def test_without_optuna_it_is_random_search_and_the_first_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    chosen().run()

    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("x · searcher random (Optuna can't be imported (")
    assert first.endswith(f"{install_command('optuna')}); no scheduler, each trial runs to its end")


@pytest.mark.usefixtures("the_default")
@pytest.mark.parametrize(
    ("space", "max_trials"),
    [
        ({**ONE_NUMBER, "seed": mqtune.grid_search([1, 2])}, 30),
        ({"x": mqtune.choice([0.1, 0.2, 0.3])}, 3),
        ({"x": 0.5}, None),
    ],
    ids=["a grid", "trials enough for each config", "constants"],
)
def test_what_random_search_covers_is_not_left_to_a_model(space: dict[str, Any], max_trials: int | None) -> None:
    assert described(space=space, max_trials=max_trials)["searcher"]["searcher"] == "random"


@pytest.mark.usefixtures("the_default")
def test_an_experiment_that_began_by_random_search_continues_by_it() -> None:
    began = described(searcher="random", seed=1)
    writer = writer_of(curve, ONE_NUMBER, max_trials=5)

    now = writer.definition(encode_value(began))

    assert now == {**began, "max_trials": 5}
    assert isinstance(writer.settings.new_searcher(1, began["searcher"]), RandomSearcher)


@pytest.mark.usefixtures("no_optuna")
def test_an_experiment_that_began_by_tpe_does_not_continue_by_chance() -> None:
    began = json.loads(RECORDED.read_text())["bounds"]
    writer = writer_of(curve, ONE_NUMBER, metric=["loss", "latency<=10", "room >= 0.5"])

    with pytest.raises(ConfigurationError, match="Optuna can't be imported"):
        writer.definition(encode_value(began))


def test_with_max_t_bad_trials_are_stopped_early() -> None:
    definition = described(max_t=9)

    assert definition["scheduler"] == described(scheduler=mqtune.ASHA(9))["scheduler"]
    assert "max_t" not in definition


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_t": 9, "scheduler": mqtune.MedianStopping()}, r"max_t=9 is for the default scheduler.*MedianStopping\("),
        *(({"max_t": odd}, "max_t") for odd in (0, -1, "9", float("nan"))),
        # It compares whole trials.
        ({"max_t": 9, "searcher": mqtune.Repeater("seed")}, "leave max_t out"),
    ],
)
def test_max_t_is_a_positive_number_for_the_default_scheduler(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        chosen({**ONE_NUMBER, "seed": mqtune.choice([1, 2])}, **options)
