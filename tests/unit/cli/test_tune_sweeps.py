"""Sweep files of Weights & Biases, as `mqtune tune` reads them."""

from __future__ import annotations

import json
import math
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, table_lines

import mqtune
from mqtune.cli.tune import Options, Plan, read_sweep
from mqtune.core.errors import ConfigurationError
from mqtune.trainable import ArgumentTemplate

PAGE = ROOT / "docs" / "how-to" / "from-wandb.md"
#: Keys that a file needs beside a parameter, and the parameters of a small one.
SMALL: dict[str, Any] = {"program": "train.py", "run_cap": 5, "metric": {"name": "loss"}, "method": "random"}
ONE = {"x": {"min": 0.0, "max": 1.0}}
#: The beginning of a command.
TRAIN = ("python", "train.py")


@pytest.fixture(autouse=True)
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    Path("package").mkdir()
    Path("package/train.py").write_text("")


def arguments_of(text: str | dict[str, Any], **options: Any) -> dict[str, Any]:
    """The arguments of the tuner for the YAML or the keys of a file."""
    path = Path("sweep.yaml" if isinstance(text, str) else "sweep.json")
    path.write_text(textwrap.dedent(text) if isinstance(text, str) else json.dumps(text))
    return Plan((), Options(**options), read_sweep(path)).arguments()


def parameter(**keys: Any) -> object:
    """The definition in the space for a parameter."""
    return arguments_of({**SMALL, "parameters": {"x": keys}})["space"]["x"]


def words_for(arguments: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """The words behind the program for a config."""
    return ArgumentTemplate(arguments["trainable"].items).fill(config)


def test_a_method_names_a_searcher_and_a_name_begins_that_of_the_experiment() -> None:
    found = arguments_of({**SMALL, "parameters": ONE, "method": "bayes", "name": "sweep demo"})

    assert (found["searcher"], found["scheduler"]) == ("tpe", None)
    assert re.fullmatch(r"sweep-demo-[0-9a-f]{8}", found["name"])


def test_a_file_of_a_hydra_project_is_read_as_it_is() -> None:
    found = arguments_of(
        """
        program: train.py
        method: random
        metric: {name: val/acc, goal: maximize, target: 0.99}
        command:
          - ${env}
          - HYDRA_FULL_ERROR=1
          - ${interpreter}
          - -u
          - ${program}
          - experiment=cifar
          - ${args_no_hyphens}
        parameters:
          model.lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
          model.layers: {min: 1, max: 4}
          data.batch_size: {distribution: q_log_uniform_values, min: 32, max: 256, q: 32}
          seed: {value: 7}
        early_terminate: {type: hyperband, min_iter: 3, eta: 2}
        """,
        max_trials=100,
    )

    assert found["space"] == {
        "model.lr": mqtune.loguniform(1e-5, 1e-1),
        "model.layers": mqtune.randint(1, 4),
        "data.batch_size": mqtune.qlograndint(32, 256, 32),
        "seed": 7,
    }
    assert (found["metric"], found["mode"], found["max_trials"]) == ("val/acc", "max", 100)
    assert found["scheduler"].rung_levels[:4] == (3, 6, 12, 24)
    assert not found["scheduler"].describe()["stop_last_trials"]
    assert found["stop"] is not None
    assert words_for(found, {"model.lr": 0.1, "seed": 7}) == ["experiment=cifar", "model.lr=0.1", "seed=7"]


def test_a_file_with_a_grid_flags_and_a_module_is_read_as_it_is() -> None:
    found = arguments_of(
        """
        project: demo
        entity: me
        description: flags of a module
        method: grid
        metric: {name: loss}
        parameters:
          amp: {values: [true, false]}
          layers: {min: 1, max: 3}
          dropout: {distribution: q_uniform, min: 0, max: 0.5, q: 0.25}
          optimizer:
            parameters:
              name: {values: [adam, sgd]}
              lr: {value: 1e-3}
        early_terminate: {type: hyperband, max_iter: 27, s: 2, eta: 3}
        command: [python3, -m, package.train, "${args_no_boolean_flags}", --tag, "{x}"]
        """
    )

    space = mqtune.Space(found["space"])
    assert (space.grid_size, found["searcher"], found["max_trials"]) == (2 * 3 * 3 * 2, None, None)
    assert found["space"]["optimizer"] == {"name": mqtune.grid_search(["adam", "sgd"]), "lr": 0.001}
    assert found["scheduler"].rung_levels == (3, 9, 27)
    assert found["trainable"].module == "package.train"
    config = {"amp": True, "layers": 2, "dropout": 0.25, "optimizer": {"name": "sgd", "lr": 0.001}}
    rest = ["--layers=2", "--dropout=0.25", '--optimizer={"name": "sgd", "lr": 0.001}', "--tag", "{x}"]
    assert words_for(found, config) == ["--amp", *rest]
    assert words_for(found, {**config, "amp": False}) == rest


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["${args}"], ["--x=2", "--y=a"]),
        (["${args_no_equals}"], ["--x", "2", "--y", "a"]),
        (["${args_no_hyphens}"], ["x=2", "y=a"]),
        (["hydra.run.dir=runs/${now:%M-%S}", "${args_no_hyphens}"], ["hydra.run.dir=runs/${now:%M-%S}", "x=2", "y=a"]),
    ],
)
def test_a_macro_gives_the_arguments_in_its_form(words: list[str], expected: list[str]) -> None:
    space = {"x": {"values": [1, 2]}, "y": {"values": ["a", "b"]}}
    found = arguments_of({**SMALL, "parameters": space, "command": ["${env}", "python", "${program}", *words]})

    assert words_for(found, {"x": 2, "y": "a"}) == expected


def test_arguments_in_json_are_one_word() -> None:
    given = {**SMALL, "command": ["python", "train.py", "${args_json}"]}
    found = arguments_of({**given, "parameters": {"x": {"values": [1, 2]}, "y": {"values": ["a", None]}}})

    (word,) = words_for(found, {"x": 2, "y": None})

    assert json.loads(word) == {"x": 2, "y": None}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"value": "adam"}, "adam"),
        ({"value": [32, 16]}, (32, 16)),
        ({"value": ["1e-3", 1]}, (0.001, 1)),
        ({"distribution": "constant", "value": 3}, 3),
        ({"values": ["1e-3", "a"]}, mqtune.choice([1e-3, "a"])),
        ({"distribution": "categorical", "values": [1, 2]}, mqtune.choice([1, 2])),
        ({"values": ["a", "b"], "probabilities": [0.25, 0.75]}, mqtune.choice(["a", "b", "b", "b"])),
        ({"min": 1, "max": 3}, mqtune.randint(1, 3)),
        ({"min": 1, "max": 3.0}, mqtune.uniform(1, 3)),
        ({"distribution": "int_uniform", "min": 1, "max": 3}, mqtune.randint(1, 3)),
        ({"distribution": "uniform", "min": 1, "max": 3}, mqtune.uniform(1, 3)),
        ({"distribution": "q_uniform", "min": 1, "max": 9}, mqtune.qrandint(1, 9, 1)),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.1}, mqtune.quniform(0, 1, 0.1)),
        ({"distribution": "log_uniform_values", "min": "1e-4", "max": 1}, mqtune.loguniform(1e-4, 1)),
        ({"distribution": "inv_log_uniform_values", "min": 0.1, "max": 1}, mqtune.loguniform(0.1, 1)),
        ({"distribution": "log_uniform", "min": -2, "max": 0}, mqtune.loguniform(math.exp(-2), 1)),
        ({"distribution": "inv_log_uniform", "min": 0, "max": 2}, mqtune.loguniform(1 / math.exp(2), 1)),
        ({"distribution": "q_log_uniform", "min": 0, "max": 5, "q": 8}, mqtune.qlograndint(1, 148, 8)),
        ({"distribution": "q_log_uniform_values", "min": 0.5, "max": 9}, mqtune.qlograndint(1, 9, 1)),
        ({"distribution": "q_log_uniform_values", "min": 0.5, "max": 2, "q": 0.5}, mqtune.qloguniform(0.5, 2, 0.5)),
        ({"distribution": "normal"}, mqtune.normal(0, 1)),
        ({"distribution": "q_normal", "mu": 2, "sigma": 3, "q": 0.5}, mqtune.qrandn(2, 3, 0.5)),
    ],
)
def test_a_parameter_is_the_domain_that_samples_alike(keys: dict[str, Any], expected: object) -> None:
    found = parameter(**keys)

    assert (found, type(found)) == (expected, type(expected))


def test_a_domain_may_stand_in_place_of_a_parameter() -> None:
    found = arguments_of(
        """
        program: train.py
        run_cap: 1
        metric: {name: m}
        parameters:
          x: ~choice(a, b)
          y: {parameters: {z: "~randint(1, 3)"}}
        """
    )

    assert found["space"] == {"x": mqtune.choice(["a", "b"]), "y": {"z": mqtune.randint(1, 3)}}
    assert found["searcher"] is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"distribution": "log_normal"}, "mqtune has no distribution log_normal; give log_uniform_values"),
        ({"distribution": "beta", "a": 1}, "parameters.x: there is no key 'a'"),
        ({"distribution": "log_unifrom", "min": 1, "max": 2}, "do you mean log_uniform"),
        ({"distribution": "uniform", "min": 0}, "parameters.x: max is missing"),
        ({"distribution": "uniform", "min": 0, "max": "big"}, "parameters.x: max='big' is not a finite number"),
        ({"distribution": "q_uniform", "min": 0, "max": math.inf}, "parameters.x: max=inf is not a finite number"),
        ({"distribution": "int_uniform", "min": 0, "max": 1.5}, "needs whole numbers"),
        ({"distribution": "log_uniform", "min": 1, "max": 1000}, "if the bounds are not exponents, give log_uniform_values"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "parameters.x: loguniform: low=0.0 must be above 0"),
        ({"distribution": "q_log_uniform_values", "min": 1e-5, "max": 0.1}, "parameters.x: q: 1 leaves at most one value"),
        ({"min": 2, "max": 1}, "parameters.x: randint: low=2 must be below high=1"),
        ({"min": 0, "max": 1, "q": 0.1}, "give distribution: q_uniform"),
        ({"min": 0}, "give value, values, min and max, or a distribution"),
        ({"values": "a"}, "values: 'a' is not a list"),
        ({"values": [1], "min": 0}, "min has no meaning beside values"),
        ({"valeus": [1]}, "there is no key 'valeus'; do you mean values?"),
        ({"values": [1, 2], "probabilities": [1]}, "not a list with a number for each of 2 values"),
        *(({"values": [1, 2], "probabilities": [odd, 1]}, "not numbers of at least 0") for odd in (-1, True, math.inf)),
        ({"values": [1, 2], "probabilities": [0, 0]}, "with a sum above 0"),
        ({"distribution": "inv_log_uniform", "min": -1000, "max": 1}, "e to the power of 1000 is too large"),
        ({"parameters": {}}, "is not a mapping of names"),
        ({"parameters": {"y": {"value": 1}}, "value": 2}, "value has no meaning beside parameters"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_parameter_names_its_place_and_the_way_out(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"sweep.json: .*{message}"):
        parameter(**keys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "hyperopt"}, "method: 'hyperopt' is not one of 'random', 'bayes', 'grid'"),
        ({"method": ["random"]}, r"method: \['random'\] is not one of"),
        ({"method": "grid", "parameters": {"x": {"min": 1, "max": 10**5}}}, "parameters.x: a grid of 100,000 values is too long"),
        ({"paramaters": {}}, "there is no key 'paramaters'; do you mean parameters"),
        ({"metric": "loss"}, "metric: 'loss' is not a mapping"),
        ({"metric": {"goal": "minimize"}}, "metric: name is missing"),
        ({"metric": {"name": "loss", "goal": "min"}}, "neither minimize nor maximize"),
        ({"metric": {"name": "loss", "goal": ["minimize"]}}, "neither minimize nor maximize"),
        ({"metric": {"name": "loss", "target": "low"}}, "metric: target='low' is not a finite number"),
        ({"run_cap": 0}, "run_cap=0 is not a whole number of at least 1"),
        ({"parameters": {}}, "is not a mapping of names to parameters"),
        ({"parameters": {"x": 0.1}}, "parameters.x: 0.1 is not a parameter; write value: 0.1"),
        ({"method": "grid"}, "parameters.x: method grid needs values that can be counted"),
        ({"early_terminate": {"type": "envelope"}}, "is not hyperband; leave early_terminate out"),
        ({"early_terminate": {"type": "hyperband"}}, "min_iter is missing"),
        ({"early_terminate": {"type": "hyperband", "max_iter": 9}}, "s is missing"),
        ({"early_terminate": {"type": "hyperband", "min_iter": 1, "eta": 1}}, "eta=1 must be above 1"),
        ({"early_terminate": {"type": "hyperband", "max_iter": 9, "s": -1}}, "s=-1 is not a whole number"),
        ({"command": "python train.py"}, "is a text; give a list"),
        ({"command": ["${args}", None]}, "None is neither a text nor a number"),
        ({"scheduler": {"engine": "ax"}}, "scheduler is not supported"),
        ({"job": "me/job:latest"}, "job is not supported; give program"),
        ({"parameters": ...}, "parameters is missing"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_names_its_key_and_the_way_out(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"sweep.json: .*{message}"):
        arguments_of(changed(changes))


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a small file with these changes. An ellipsis deletes a key."""
    keys = {**SMALL, "parameters": ONE, **changes}
    return {key: value for key, value in keys.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"program": ...}, "program is missing"),
        ({"metric": ...}, "the metric is missing; give --minimize METRIC or --maximize METRIC, or metric in the file"),
        ({"run_cap": ...}, "the number of trials is missing; give --max-trials N, or run_cap in the file"),
        ({"command": [*TRAIN, "${envvar:HOME}"]}, r"have the program read the variable HOME.*--env HOME=VALUE"),
        ({"command": [*TRAIN, "${args_json_file}"]}, r"use \$\{args_json\}"),
        ({"command": [*TRAIN, "--x=${args}"]}, r"has a macro within a word; macros are \$\{env\}"),
        ({"command": [*TRAIN, "--x=${envvar:HOME}"]}, r"has a macro within a word; have the program read the variable HOME"),
        ({"command": [*TRAIN, "${argz}"]}, r"macros are \$\{env\}"),
        ({"command": [*TRAIN, "${args_no_boolean_flags}"], "parameters": {"x": {"values": [True, 1]}}}, "the parameter x, which has booleans and other values"),
    ],
)  # fmt: skip
def test_a_command_that_can_not_run_or_lacks_an_option_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        arguments_of(changed(changes))


def test_keys_without_effect_are_named_in_one_line_each() -> None:
    described = {
        **SMALL, "parameters": ONE, "project": "p", "entity": "e",
        "metric": {"name": "loss", "impute": "worst"},
        "early_terminate": {"type": "hyperband", "min_iter": 1, "s": 2, "strict": True},
    }  # fmt: skip
    Path("sweep.json").write_text(json.dumps(described))

    lines = read_sweep(Path("sweep.json")).warnings

    assert [line.partition(": without effect")[0] for line in lines] == [
        "project, entity",
        "metric: impute",
        "early_terminate: strict",
        "early_terminate: s",
    ]


def test_rounded_probabilities_are_told() -> None:
    described = {**SMALL, "parameters": {"x": {"values": [1, 2], "probabilities": [1, 10**6]}}}
    Path("sweep.json").write_text(json.dumps(described))

    (line,) = read_sweep(Path("sweep.json")).warnings

    assert line == "parameters.x: the probabilities are rounded to multiples of 0.001"


def test_options_have_precedence_over_the_file() -> None:
    described = {**SMALL, "metric": {"name": "loss", "target": 0}, "parameters": {**ONE, "epochs": {"value": 3}}}
    found = arguments_of(
        described, maximize=["acc"], max_trials=7, searcher="tpe", fixed=["epochs=9", "seed=1"], name="mine", max_t=9
    )

    assert (found["metric"], found["mode"], found["max_trials"]) == ("acc", "max", 7)
    assert (found["searcher"], found["name"], found["stop"]) == ("tpe", "mine", None)
    assert found["space"] == {"x": mqtune.uniform(0, 1), "epochs": 9, "seed": 1}
    assert found["scheduler"].rung_levels[-1] == 9


def test_a_nested_parameter_is_fixed_by_its_path() -> None:
    nested = {"optimizer": {"parameters": {"lr": {"min": 0.0, "max": 1.0}, "name": {"values": ["adam", "sgd"]}}}}
    found = arguments_of({**SMALL, "parameters": nested}, fixed=["optimizer.lr=0.1", "data.path=x"])

    assert found["space"] == {"optimizer": {"lr": 0.1, "name": mqtune.choice(["adam", "sgd"])}, "data.path": "x"}


def test_a_fixed_parameter_leaves_the_sweep_unchanged() -> None:
    nested = {"optimizer": {"parameters": {"lr": {"min": 0.0, "max": 1.0}}}}
    Path("sweep.json").write_text(json.dumps({**SMALL, "parameters": nested}))
    sweep = read_sweep(Path("sweep.json"))

    Plan((), Options(fixed=["optimizer.lr=0.1"]), sweep)

    assert sweep.space == {"optimizer": {"lr": mqtune.uniform(0, 1)}}


def test_words_replace_the_program_of_a_file() -> None:
    Path("other.py").write_text("")
    Path("sweep.json").write_text(json.dumps({**SMALL, "parameters": ONE}))
    sweep = read_sweep(Path("sweep.json"))

    behind = Plan(["other.py", "--n", "~randint(1, 3)"], Options(), sweep).arguments()
    within = Plan(["python", "other.py", "${args_no_hyphens}", "last"], Options(), sweep).arguments()

    assert behind["space"] == {"x": mqtune.uniform(0, 1), "n": mqtune.randint(1, 3)}
    assert words_for(behind, {"x": 0.5, "n": 2}) == ["--n", "2", "--x=0.5"]
    assert (behind["trainable"].program, within["trainable"].program) == ("other.py", "other.py")
    assert words_for(within, {"x": 0.5}) == ["x=0.5", "last"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sweep.yaml", "a: [1", "is not YAML: while parsing"),
        ("sweep.yaml", "- a", "the file has no keys"),
        ("sweep.yaml", "!!python/object/apply:os.getpid []", "is not YAML: could not determine a constructor"),
        ("sweep.json", "{", "is not JSON"),
        ("none.yaml", None, "none.yaml can't be read"),
    ],
)
def test_a_file_that_is_no_sweep_is_refused(name: str, text: str | None, message: str) -> None:
    if text is not None:
        Path(name).write_text(text)

    with pytest.raises(ConfigurationError, match=message):
        read_sweep(Path(name))


def test_json_needs_no_extra_and_yaml_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    Path("sweep.yaml").write_text("a: 1")

    assert arguments_of({**SMALL, "parameters": ONE})["max_trials"] == 5
    with pytest.raises(ConfigurationError, match=r"YAML needs PyYAML: pip install .*yaml.*; sweep.json needs none"):
        read_sweep(Path("sweep.yaml"))


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table on the page, without its head."""
    return [cells for title, _, cells in table_lines(PAGE) if title == section][2:]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_the_page_says_which_keys_have_no_effect_or_are_refused() -> None:
    told = {key: cells[1] for cells in rows("Key by key") for key in codes(cells[0])}
    unused = [key for key, text in told.items() if text.startswith("without effect") and "impute" not in key]
    refused = [key for key, text in told.items() if text.startswith("an error")]
    assert len(unused) > 5
    assert len(refused) > 3

    Path("sweep.json").write_text(json.dumps({**SMALL, "parameters": ONE, **dict.fromkeys(unused, "x")}))
    assert read_sweep(Path("sweep.json")).warnings[0].startswith(f"{', '.join(unused)}: without effect")
    for key in refused:
        with pytest.raises(ConfigurationError, match=f"{key} is not supported"):
            arguments_of({**SMALL, "parameters": ONE, key: "x"})


def test_the_page_has_each_distribution() -> None:
    named = {code for cells in rows("Parameters") for code in codes(cells[0])}
    with pytest.raises(ConfigurationError) as refused:
        parameter(distribution="zipf")
    known = set(re.findall(r"'(\w+)'", str(refused.value).partition("there are")[2]))
    refused_ones = {"log_normal", "q_log_normal", "beta", "q_beta"}

    assert known - {"categorical_w_probabilities"} <= {code.removeprefix("distribution: ") for code in named}
    assert refused_ones <= named
    for distribution in refused_ones:
        with pytest.raises(ConfigurationError, match=f"mqtune has no distribution {distribution}; give q?_?"):
            parameter(distribution=distribution)


@pytest.mark.parametrize("brackets", [5, 10_000])
def test_early_termination_begins_with_the_first_report_at_the_earliest(brackets: int) -> None:
    early = {"type": "hyperband", "max_iter": 9, "s": brackets}
    found = arguments_of({**SMALL, "parameters": ONE, "early_terminate": early})["scheduler"]

    assert found.rung_levels == (1, 3, 9)


def test_early_termination_of_the_page_stops_where_it_says() -> None:
    for cells in rows("Early termination"):
        given: dict[str, Any] = {
            key: int(value) if value.isdigit() else value
            for key, value in (code.split(": ") for code in codes(cells[0]) if ": " in code)
        }
        if given:
            found = arguments_of({**SMALL, "parameters": ONE, "early_terminate": given})["scheduler"]
            levels = [int(level) for level in re.findall(r"\d+", cells[1])]
            assert isinstance(found, mqtune.ASHA)
            assert [*found.rung_levels[: len(levels)]] == levels
