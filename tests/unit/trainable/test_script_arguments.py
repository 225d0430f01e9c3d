"""How a script is called: the templates of its arguments, and the patterns that read its metrics."""

from __future__ import annotations

import argparse
import ast
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import mqtune
from mqtune import Script
from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.trainable import ArgumentTemplate, MetricLines, OutputPatterns, TrainableSpec, reader_of

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "tune.md").read_text()
#: The rows of the page's table: items, a config, and the words that become of them.
ROWS = re.findall(r"^\| (`.*`|nothing) \| `(\{.*\})` \| (`.*`|nothing) \|", PAGE, re.MULTILINE)


#: The code of the page's further scripts.
SCRIPTS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[-1]


def words(command: list[Any], config: dict[str, Any]) -> list[str]:
    """The words that become of a command's items."""
    return ArgumentTemplate(Script(["./train", *command]).items).fill(config)


@pytest.mark.parametrize(("items", "config", "expected"), ROWS)
def test_each_row_of_the_page_is_true(items: str, config: str, expected: str):
    assert len(ROWS) >= 12
    command = [] if items == "nothing" else ast.literal_eval(f"[{items.strip('`')}]")

    found = words(command, ast.literal_eval(config))

    assert found == ([] if expected == "nothing" else shlex.split(expected.strip("`")))


@given(st.dictionaries(st.sampled_from("abcd"), st.floats() | st.integers()))
def test_argparse_reads_each_number_exactly(config: dict[str, float]):
    parser = argparse.ArgumentParser()
    for name, value in config.items():
        parser.add_argument(f"--{name}", type=type(value))

    read = vars(parser.parse_args(words([], config)))

    assert {name: repr(value) for name, value in read.items()} == {name: repr(value) for name, value in config.items()}


@pytest.mark.parametrize("value", ["a\0b", b"raw"])
def test_a_value_that_no_program_can_be_given_is_refused_by_name(value: Any):
    with pytest.raises(ConfigurationError, match="'key'"):
        words([], {"key": value})


def test_a_missing_value_never_leaves_an_option_without_its_value():
    way_out = r"leave '-d' without a value; write both as one list, \['-d', '\{d\}'\]"
    with pytest.raises(ConfigurationError, match=way_out):
        words(["-d", "{d}"], {"d": None})
    assert words(["-d", "{d:--deep}"], {"d": None}) == ["-d"]
    assert words(["-d", "{d!json}"], {"d": None}) == ["-d", "null"]


@pytest.mark.parametrize("value", [1, 0, 0.5, "yes", []])
def test_a_flag_needs_true_or_false(value: Any):
    with pytest.raises(ConfigurationError, match=r"'amp'.*needs True, False or None; give mqtune.choice"):
        words(["{amp:--amp}"], {"amp": value})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("./train", r"give a list, \['./train', '--\{name\}=\{value\}'\]"),
        ([], "is not a list of a program"),
        *((command, "neither text nor a list of texts") for command in ([3], ["./train", 3])),
        (["./train", []], "empty list"),
        ([["./train", "x"]], "the first item is the program"),
        *((["-m", *module], "give a module's name") for module in ([], ["../x"], ["x/y.py"])),
        *(
            (["./train", item], "which is no field")
            for item in ("--a={", "--a={}", '{"lr": 1}', "{lr:.3f}", "{lr!r}", "{lr}}")
        ),
        *(
            (["./train", *items], r"needs \{name\} and \{value\}")
            for items in (["{value}"], ["--{name}"], ["--{name}={value},{lr}"], ["--{name}", "x", "{value}"])
        ),
        (["./train", "--{name*}={value}"], "a name is only written as"),
        *(
            (["./train", *items], "make it an item of its own")
            for items in (["--{name}={value:--x}"], ["{name}", "{value:--x}"], ["x{amp:--amp}"], [["{amp:--amp}", "x"]])
        ),
        (["./train", "{a*}{b*}"], "repeats two lists"),
        (["./train", *["x"] * 2_000], "more than 1,000 items"),
        (["./train", "x\0"], "or a NUL"),
    ],
)
def test_a_mistake_in_a_command_is_an_error_when_the_script_is_made(command: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        Script(command)


@pytest.mark.parametrize(
    ("command", "space", "message"),
    [
        (["./train", "{lr}"], {"rate": 0.1}, r"names 'lr', and the parameters are \['rate'\]"),
        (["./train", "{lr}"], {"lr": 0.1, "wd": 0.1}, "no argument of the script has the parameter 'wd'"),
        (["./train", "{net.width}"], {"net": {"width": mqtune.randint(1, 4)}}, "names 'net.width'"),
    ],
)
def test_a_command_that_does_not_fit_the_space_is_an_error_when_the_tuner_is_made(
    command: list[str], space: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").touch(0o755)

    with pytest.raises(ConfigurationError, match=message):
        mqtune.Tuner(Script(command), space, metric="loss", mode="min", backend=mqtune.Local())


def test_a_script_with_a_command_comes_back_from_a_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    spec, root = TrainableSpec.of(Script(["train.py", "x", ["-c", "{c}"]], metrics=r"loss (?P<loss>\S+)"))

    assert (spec.script, root) == ("train.py", tmp_path)
    assert spec.encode() == {
        "name": "train", "module": "", "script": "train.py", "kind": "script",
        "arguments": [["x"], ["-c", "{c}"]], "metrics": [r"loss (?P<loss>\S+)"],
    }  # fmt: skip
    assert TrainableSpec.decode({**spec.encode(), "of": "a later version"}) == spec
    assert hash(spec) == hash(TrainableSpec.decode(spec.encode()))


def test_a_module_is_found_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("train.py", "inner/__main__.py"):
        (tmp_path / "package" / name).touch()

    spec, root = TrainableSpec.of(Script(["-m", "package.train"]))

    assert (str(spec), spec.name, root) == ("-m package.train", "train", tmp_path)
    assert TrainableSpec.decode(spec.encode()).load(root) == tmp_path / "package" / "train.py"
    assert TrainableSpec.of(Script(["-m", "package.inner"]))[0].locate(root) == tmp_path / "package/inner/__main__.py"
    for module in ("package", "json.tool"):
        with pytest.raises(TrainableNotFound, match="is not below the code root"):
            TrainableSpec.of(Script(["-m", module]))


@pytest.mark.parametrize(
    "values",
    [
        *({"arguments": items} for items in ("x", ["x"], [[]], [[3]], [["x\0"]], [["x"]] * 1_001, [["x" * 100_001]])),
        *({"metrics": patterns} for patterns in ("(?P<loss>x)", [3], ["x"] * 33, ["x" * 40_000], {"loss": "x"})),
        *({"arguments": [["x"]], "kind": "function"}, {"metrics": ["(?P<loss>x)"], "kind": "class"}),
    ],
)
def test_a_malformed_call_in_a_definition_is_refused(values: dict[str, Any]):
    with pytest.raises(TrainableNotFound, match="names no trainable"):
        TrainableSpec.decode({"name": "train", "script": "train.py", "kind": "script", **values})


def reports(patterns: str | list[str], output: str, metric: list[str] | None = None) -> list[dict[str, Any]]:
    """The reports that patterns read from a whole output."""
    lines = MetricLines(reader_of(Script(["x"], metrics=patterns).metrics, metric or ["loss"]))
    return [each for each in [*lines.feed(output.encode()), *lines.finish()] if isinstance(each, dict)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("+3", 3), ("007", 7), ("3.", 3.0), (".5", 0.5), ("1e-05", 1e-05), ("-1E5", -1e5),
        ("inf", math.inf), ("-Infinity", -math.inf), ("1" * 30, float("1" * 30)),
        ("1_000", "1_000"), ("0x10", "0x10"), ("12%", "12%"), ("1,000", "1,000"), ("adam", "adam"), ("1.25.", "1.25."), ("٣.5", 3.5),
    ],
)  # fmt: skip
def test_a_group_is_a_number_if_it_looks_like_one(text: str, value: Any):
    ((found),) = reports(r"loss=(?P<loss>\S*)", f"loss={text}\n")

    assert (found["loss"], type(found["loss"])) == (value, type(value))
    assert math.isnan(reports(r"loss=(?P<loss>\S*)", "loss=-nan")[0]["loss"])


EPOCH, LOSS, TRAIN = r"^epoch (?P<epoch>\d+)", r"^loss (?P<loss>\S+)", r"^train (?P<train>\S+)"
SEVERAL = r"epoch (?P<epoch>\d+): loss (?P<loss>[^\s,]+)(?:, acc (?P<acc>\S+))?"


@pytest.mark.parametrize(
    ("patterns", "output", "expected"),
    [
        # Each line that one pattern matches is a report.
        (SEVERAL, "start\nepoch 1: loss 0.5, acc 0.1\nnothing\nepoch 2: loss 0.25\r\nepoch 3: loss 0.125",
         [{"epoch": 1, "loss": 0.5, "acc": 0.1}, {"epoch": 2, "loss": 0.25}, {"epoch": 3, "loss": 0.125}]),
        # Values of several patterns are one report, in any order.
        ([EPOCH, LOSS], "epoch 1\nloss 0.5\nepoch 2\nloss 0.25\n", [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]),
        ([EPOCH, LOSS], "loss 0.5\nepoch 1\nloss 0.25\nepoch 2\n", [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]),
        # The newest value counts until the metric comes.
        ([TRAIN, LOSS], "train 3\ntrain 2\nloss 0.5\ntrain 1\nloss 0.25\ntrain 0\n", [{"train": 2, "loss": 0.5}, {"train": 1, "loss": 0.25}]),
        # A rare group delays a report until the metric comes again.
        ([LOSS, r"^test (?P<test>\S+)"], "loss 0.5\nloss 0.25\ntest 9\n", [{"loss": 0.5}, {"loss": 0.25, "test": 9}]),
        ([LOSS, r"^test (?P<test>\S+)"], "loss 0.5\nloss 0.25\n", [{"loss": 0.5}, {"loss": 0.25}]),
        # Two patterns may read the same metric.
        ([r"^val (?P<loss>\S+)", r"^final (?P<loss>\S+)"], "val 2\nval 1\nfinal 0\n", [{"loss": 2}, {"loss": 1}, {"loss": 0}]),
        # Tagged lines are reports too, and are not matched.
        # Lines that are JSON objects with the metric are reports. Others, such as lines of a log, are not.
        ("json", 'loss 5\n{"epoch": 1, "loss": 0.5, "note": "a"}\n  {"loss": NaN, "ok": true}  \n', [{"epoch": 1, "loss": 0.5, "note": "a"}, {"loss": pytest.approx(math.nan, nan_ok=True), "ok": True}]),
        ("json", '{"level": "info"}\n{"train": {"loss": 1}}\n[{"loss": 1}]\n{"loss": 1\nx {"loss": 2}\n{"loss": 3}', [{"loss": 3}]),
        ("json", '{"a":' * 50_000 + '\n{"loss": 1}\n[tune-metric]: {"loss": 2}\n', [{"loss": 1}, {"loss": 2}]),
        (LOSS, 'loss 1\n[tune-metric]: {"loss": 2, "text": "loss 5"}\nloss 3\n', [{"loss": 1}, {"loss": 2, "text": "loss 5"}, {"loss": 3}]),
    ],
)  # fmt: skip
def test_these_reports_are_read_from_output(patterns: Any, output: str, expected: list[dict[str, Any]]):
    assert reports(patterns, output) == expected


@pytest.mark.parametrize(
    ("name", "config", "expected", "output", "report"),
    [
        ("libsvm", {"c": 2, "g": 0.5}, "-c 2 -g 0.5 -v 5 heart.scale",
         "optimization finished, #iter = 17\nCross Validation Accuracy = 25.5%\n", {"accuracy": 25.5}),
        ("forest", {"trees": 10, "depth": 2}, "10 2", "Loading required package: forest\nfold  3  of 3\n  rmse:   12.5\n",
         {"fold": 3, "rmse": 12.5}),
        ("hydra", {"model.lr": -1e-05, "model.sizes": (32, 16), "model.name": "big", "model.drop": None},
         """hydra.run.dir=. model.lr=-1e-05 'model.sizes=[32, 16]' 'model.name="big"' model.drop=null""",
         "[2026-01-01 00:00:00,000][INFO] - val/loss=-2e-05\n", {"loss": -2e-05}),
        ("flags", {"amp": True, "shift": -1e-05}, "--amp --shift=-1e-05", "loss 0.5\n", {"loss": 0.5}),
    ],
)  # fmt: skip
def test_each_script_of_the_page_calls_and_reads_its_program(
    name: str, config: dict[str, Any], expected: str, output: str, report: dict[str, Any]
):
    names: dict[str, Any] = {"mqtune": mqtune}
    exec(compile(SCRIPTS, "docs/how-to/tune.md", "exec"), names)
    script: Script = names[name]

    assert ArgumentTemplate(script.items).fill(config) == shlex.split(expected)
    assert reports(script.metrics, output, [next(reversed(report))]) == [report]


def test_a_progress_bar_that_ends_no_line_is_read():
    lines = MetricLines(OutputPatterns([r"loss=(?P<loss>[\d.]+)"], ["loss"]))

    assert [*lines.feed(b"\r10% loss=0.5\r20% loss=0.2"), *lines.feed(b"5\r")] == [{"loss": 0.5}, {"loss": 0.25}]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (r"loss (\S+)", r"names no metric; name its group, such as \(\?P<loss>"),
        ("(", "is not a regular expression"),
        ("(?P<loss>" + "x" * 1_000 + ")", "longer than 1,000 characters"),
        (["(?P<loss>x)"] * 33, "give up to 32"),
        (["json", "(?P<loss>x)"], "the pattern 'json' of metrics names no metric"),
        (re.compile("(?P<loss>x)"), "give the pattern as text"),
        ([3], "neither text nor a list"),
        (3, "neither text nor a list"),
    ],
)
def test_a_mistake_in_a_pattern_is_an_error_when_the_script_is_made(metrics: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        Script(["./train"], metrics=metrics)
