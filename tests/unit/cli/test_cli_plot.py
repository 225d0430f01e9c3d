from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from book import Book
from click.testing import CliRunner, Result

from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MqtuneError, NothingToDraw
from mqtune.core.version import install_command


@pytest.fixture
def _here(mqtune_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(mqtune_home / "mine")
    for number in range(1, 4):
        book.run(f"{number:04}", 1.0, 1 / number, config={"lr": number / 10})
    book.save()
    monkeypatch.chdir(tmp_path)


def plot(*arguments: str) -> Result:
    return CliRunner().invoke(group, ["plot", *arguments])


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "file", "title"),
    [
        (["mine", "-o", "curves.png"], "curves.png", "learning curves"),
        (["mine", "slices", "-o", "curves.svg"], "curves.svg", "loss by parameter"),
        (["min", "-o", "a.html"], "a.html", "best so far"),
        ([], "history.png", "best so far"),
    ],
)
def test_a_picture_is_of_the_kind_that_is_asked_for_or_of_the_files_name(arguments: list[str], file: str, title: str):
    done = plot(*arguments)

    assert done.stdout == f"{file}: mine: {title} · 3 trials (3 completed)\n"
    assert Path(file).stat().st_size > 1_000


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (["mine", "-o", "curves.jpg"], ConfigurationError, r"ends in \.png"),
        (["mine", "pareto"], NothingToDraw, "one metric"),
        (["yours"], ConfigurationError, "no experiment 'yours'"),
    ],
)
def test_what_can_not_be_drawn_says_why_and_leaves_no_file(
    arguments: list[str], error: type[MqtuneError], text: str, tmp_path: Path
):
    with pytest.raises(error, match=text):
        CliRunner().invoke(group, ["plot", *arguments], catch_exceptions=False)

    assert not [*tmp_path.glob("*.*g")]
    assert plot("mine", "curvess").exit_code == 2


@pytest.mark.usefixtures("_here")
def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path):
    # As where neither library is installed.
    code = (
        "import sys; from importlib import util; find = util.find_spec;"
        "util.find_spec = lambda name, *rest: None if name in ('matplotlib', 'plotly') else find(name, *rest);"
        "from mqtune.cli import main; sys.argv = ['mqtune', 'plot', 'mine']; main()"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, f"mqtune: plots need matplotlib: {install_command('plot')}\n")


@pytest.mark.usefixtures("_here")
def test_the_points_of_a_picture_are_printed_as_json_and_nothing_is_drawn(tmp_path: Path) -> None:
    found = json.loads(plot("mine", "curves", "--json").stdout)

    assert (found["experiment"], found["kind"], found["title"]) == ("mine", "curves", "mine: learning curves")
    assert {point["label"] for point in found["points"]} == {"0001", "0002", "0003"}
    assert not [*tmp_path.glob("*.png")]
    assert plot("mine", "curves", "--json", "-o", "a.png").exit_code == 2
