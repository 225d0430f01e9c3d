from __future__ import annotations

import json
from pathlib import Path

import pytest
from book import Book
from click.testing import CliRunner, Result

from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MqtuneError, NothingToDraw


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
def test_the_points_are_printed_or_written_as_json():
    printed = plot("mine", "--json")
    written = plot("mine", "--json", "-o", "points.json")

    assert [point["y"] for point in json.loads(printed.stdout)["points"]]
    assert Path("points.json").read_text() == printed.stdout
    assert written.stdout.startswith("points.json: mine: best so far")


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (["mine", "-o", "curves.jpg"], ConfigurationError, r"ends in \.png"),
        (["mine", "pareto"], NothingToDraw, "one metric"),
        (["mine", "--json", "-o", "missing/points.json"], MqtuneError, r"missing/points\.json can't be written"),
        (["yours"], ConfigurationError, "no experiment 'yours'"),
    ],
)
def test_no_picture_leaves_no_file(arguments: list[str], error: type[MqtuneError], text: str, tmp_path: Path):
    with pytest.raises(error, match=text):
        CliRunner().invoke(group, ["plot", *arguments], catch_exceptions=False)

    assert not [*tmp_path.glob("*.*g")]
    assert plot("mine", "curvess").exit_code == 2
