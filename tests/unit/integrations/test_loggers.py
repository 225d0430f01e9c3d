"""All loggers write each report once, also when drivers, the tool or the queue fail."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from urllib.request import Request

import pytest
from book import Book
from searcher_story import train
from simulation import tuner_on
from waiting import eventually

import mqtune
from mqtune.core.trial import Report, Trial, TrialId
from mqtune.integrations import TrialLogger
from mqtune.testing.worlds import WORLDS, World

PAGE: Final = (Path(__file__).parents[3] / "docs" / "loggers.md").read_text(encoding="utf-8")
AS_CALLBACK, LATER, MESSAGES, OWN = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


class Tool:
    """Another tool, whose data outlives the loggers that write it."""

    def __init__(self) -> None:
        self.reports: dict[TrialId, list[Report]] = {}
        self.ended: dict[TrialId, str] = {}
        self.is_away = False


class ToTool(TrialLogger):
    def __init__(self, tool: Tool) -> None:
        super().__init__()
        self._tool = tool
        self.is_open = False

    def open(self, name: str) -> None:
        assert name.startswith("contract-")
        self.is_open = True

    def begin_trial(self, trial: Trial) -> int:
        return len(self._tool.reports.setdefault(trial.id, []))

    def write_reports(self, trial: Trial, reports: Sequence[Report], first: int) -> None:
        if self._tool.is_away:
            raise ConnectionError("the tool is away")
        known = self._tool.reports[trial.id]
        assert first == len(known) + 1
        known += reports

    def end_trial(self, trial: Trial) -> None:
        self._tool.ended[trial.id] = trial.status.value

    def close(self) -> None:
        self.is_open = False


def run(world: World, new_logger: Callable[[], TrialLogger], *, cut_after: Sequence[int] = ()) -> mqtune.Results:
    def arguments() -> dict[str, Any]:
        return {"scheduler": mqtune.PromotionASHA(9, grace_period=3), "callbacks": [new_logger()]}

    return world.run(arguments, cut_after=cut_after)


def expect_all(tool: Tool, results: mqtune.Results) -> None:
    """Expect each report that counts in the tool, in order, and each end."""
    assert sum(map(len, tool.reports.values())) > 0
    for result in results:
        counting = [(r.attempt, r.sequence) for r in results.reports(result.id) if not r.late]
        assert [(each.attempt, each.sequence) for each in tool.reports[result.id]] == counting
        assert tool.ended.get(result.id, "") == (result.status.value if result.status.is_terminal else "")


@pytest.mark.parametrize("world", WORLDS)
def test_each_report_is_in_the_tool_once_and_in_order(world: str) -> None:
    tool = Tool()

    results = run(WORLDS[world], lambda: ToTool(tool))

    expect_all(tool, results)


def test_what_killed_drivers_have_not_written_the_next_one_writes() -> None:
    tool, rng = Tool(), random.Random(0)

    def after_a_kill() -> ToTool:
        for trial, reports in tool.reports.items():
            if tool.ended.pop(trial, "") or rng.random() < 0.5:
                del reports[rng.randint(0, len(reports)) :]
        return ToTool(tool)

    results = run(WORLDS["failures"], after_a_kill, cut_after=[15, 25, 10])

    expect_all(tool, results)


@pytest.mark.parametrize("goes_on", [False, True])
def test_reports_reach_the_tool_during_the_run_with_those_of_an_earlier_driver(*, goes_on: bool) -> None:
    # Five reports, and then none for years.
    backend = mqtune.Simulated(lambda _: [*[(1.0, {"loss": 1.0})] * 5, (1e9, {"loss": 1.0})], keep_journal=True)

    def tuner(*callbacks: TrialLogger) -> mqtune.Tuner:
        run = mqtune.RunOptions(callbacks=list(callbacks))
        tuner = tuner_on(backend, train, {}, max_trials=1, name="contract-going-on", run=run)
        while not tuner.get_trials() or not tuner.get_trials()[0].reports:
            tuner.step(1.0)
        return tuner

    tool = Tool()
    if goes_on:
        tuner().close()
    with contextlib.closing(tuner(ToTool(tool))) as going_on:
        eventually(lambda: going_on.step(1.0) or tool.reports.get(TrialId("0001")))


def test_reports_that_the_driver_has_not_seen_yet_are_not_written(tmp_path: Path) -> None:
    tool, book = Tool(), Book(tmp_path / "contract-ahead")
    book.stage("0001")
    book.report("0001", {"loss": 3.0})
    seen = mqtune.Results.load(book.save()).experiment
    book.report("0001", {"loss": 2.0}, {"loss": 1.0})
    to_tool = ToTool(tool)
    to_tool.setup(book.save())

    to_tool.on_start(seen)
    to_tool.on_end()

    assert [report.metrics["loss"] for report in tool.reports[TrialId("0001")]] == [3.0]


@pytest.mark.parametrize("limit", [2, 1000])
def test_a_tool_that_was_away_gets_what_it_has_missed(limit: int) -> None:
    tool = Tool()
    tool.is_away = True

    class Returning(ToTool):
        most_waiting = limit

        def on_end(self) -> None:
            tool.is_away = False
            super().on_end()

    results = run(WORLDS["odd values"], lambda: Returning(tool))

    expect_all(tool, results)


def test_experiments_that_have_ended_are_written_from_their_journals_once_by_one_logger() -> None:
    tool = Tool()
    to_tool = ToTool(tool)
    for world in ("failures", "slow"):
        results = run(WORLDS[world], lambda: ToTool(Tool()))
        tool.reports.clear()
        tool.ended.clear()
        for _ in range(2):
            to_tool.write(results)
            assert not to_tool.is_open

        expect_all(tool, results)


def test_the_pages_logger_is_a_callback_and_is_run_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX")
    monkeypatch.chdir(tmp_path)
    backend, space = mqtune.Simulated(lambda config: [(1.0, {"loss": config["x"]})]), {"x": mqtune.uniform(0, 1)}
    tuner_on(backend, train, space, max_trials=2, name="my-experiment").run()

    exec(AS_CALLBACK + LATER, {"mqtune": mqtune, "train": train, "space": space})

    assert sorted(path.name for path in Path("runs/my-experiment").iterdir()) == ["0001", "0002"]


def test_the_pages_messages_are_posted_and_errors_hide_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[str] = []

    def post(request: Request, timeout: float) -> io.BytesIO:
        posted.append(json.loads(bytes(request.data))["text"])  # type: ignore[arg-type]
        if request.full_url.endswith("secret"):
            raise OSError(f"{request.full_url} is not there")
        return io.BytesIO()

    monkeypatch.setattr("urllib.request.urlopen", post)
    names: dict[str, Any] = {"mqtune": mqtune}
    exec(MESSAGES, names)
    taken, refused = (names["Messages"](f"https://chat.example/{path}") for path in ("taken", "secret"))
    for messages in (taken, refused):
        messages.on_start(SimpleNamespace(name="digits", outcome="finished"))
    taken.on_end()
    with pytest.raises(ConnectionError) as error:
        refused.on_end()

    assert posted == ["digits: finished"] * 2
    assert "secret" not in "".join(traceback.format_exception(error.value))


def test_the_pages_own_logger_writes_each_report_once(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(OWN, names)

    results = run(WORLDS["failures"], lambda: names["Lines"](tmp_path / "lines"), cut_after=[20, 20])

    for result in results:
        path = tmp_path / "lines" / results.name / result.id
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        assert [line.split(" ")[0] for line in lines] == [str(number + 1) for number in range(result.trial.reports)]
