"""Examples of the docs and of the cheat sheet run, and the names in them exist."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final

import pytest
from click.testing import CliRunner
from pages import ROOT
from partners import in_this_syne_tune

import mqtune
from mqtune.cli import group
from mqtune.testing.searchers import NewSearcher, SearcherContract

pytestmark = pytest.mark.slow
PAGES: Final = {
    page: (ROOT / "docs" / f"{page}.md").read_text() for page in ("trials", "checkpoints", "processes", "deciding")
}
CHEAT_SHEET: Final = ROOT / "examples" / "cheat_sheet.py"
PROGRAM: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
Run = Callable[[str], ModuleType]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs all of a page's examples as one module."""
    monkeypatch.chdir(tmp_path)

    def run(text: str) -> ModuleType:
        path = tmp_path / "the_page.py"
        path.write_text("import mqtune\n\n" + "\n\n".join(PROGRAM.findall(text)))
        spec = importlib.util.spec_from_file_location("the_page", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["the_page"] = module
        spec.loader.exec_module(module)
        return module

    yield run
    sys.modules.pop("the_page", None)


#: Where public names are.
_HOMES = (mqtune, mqtune.schedulers, mqtune.schedulers.stopping, mqtune.search)


def test_the_examples_of_the_life_of_a_trial_run(run: Run):
    first, second, third = run(PAGES["trials"]).tuner.get_trials()

    assert [trial.status.name for trial in (first, second, third)] == ["COMPLETED", "ABANDONED", "COMPLETED"]
    assert first.config == {"lr": 0.5}
    assert first.attempts[1].checkpoint
    assert third.parent == second.id
    assert third.attempt.checkpoint.startswith((f"m-{second.id}", f"p-{second.id}"))


def test_the_trainables_of_the_examples_run_without_a_trial(run: Run, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    checkpoints = run(PAGES["checkpoints"])
    checkpoints.train({"lr": 0.5})
    checkpoints.train_in_memory({"lr": 0.5})
    run(PAGES["processes"]).train_here({"lr": 0.5})

    assert sum("loss=" in record.message for record in caplog.records) == 19


def test_the_scheduler_rules_and_callback_of_the_examples_work_together(run: Run):
    trainable = run(PAGES["checkpoints"]).Train
    page = run(PAGES["deciding"])
    for rule in page.rules:
        diary = page.Diary()
        run_options = mqtune.RunOptions(callbacks=[diary], progress=False)
        # With a seed: a config that is as good as the bound at its first report would have no second attempt.
        options = {"scheduler": page.Rehearsal(), "stop": rule, "max_trials": 3, "seed": 1, "run": run_options}
        backend, space = mqtune.Simulated(page.curve), {"lr": mqtune.uniform(0, 1)}

        results = mqtune.Tuner(trainable, space, metric="loss", mode="min", backend=backend, **options).run()

        assert [result.status.name for result in results] == ["COMPLETED"] * 3
        assert [len(result.attempts) for result in results] == [2, 2, 2]
        assert len(diary.lines) == 3


def test_the_examples_of_results_run(run: Run, tmp_path: Path):
    text = (ROOT / "docs" / "results.md").read_text()
    run(text)
    (tmp_path / "curves.png").unlink()
    commands = [shlex.split(line)[1:] for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE)]
    done = [CliRunner().invoke(group, command) for command in commands]

    assert [each.stderr for each in done] == ["", "", ""]
    assert {path.name for path in tmp_path.glob("*.*")} >= {"curves.png", "importances.svg", "timeline.html"}


# From code of Ax.
@pytest.mark.filterwarnings(r"ignore:::ax\b")
@pytest.mark.parametrize("example", PROGRAM.findall((ROOT / "docs" / "search.md").read_text()))
def test_an_example_of_search_runs_without_workers(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for extra, module in {"ax": "ax", "syne_tune": "syne_tune.optimizer.baselines"}.items():
        if re.search(rf"integrations\.{extra}\w* ", example):
            # Passes over the warnings of an import, which includes Syne Tune 0.13's: its strings have invalid escapes.
            pytest.importorskip(module)
            example = in_this_syne_tune(example) if extra == "syne_tune" else example
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    exec(compile(example, "an example of docs/search.md", "exec"), {"mqtune": mqtune, "__name__": "page"})


def test_the_cheat_sheet_is_a_program_that_runs_and_has_each_public_name(run: Run):
    page = run(f"```python\n{CHEAT_SHEET.read_text()}```")

    assert [trial.status.name for trial in page.results].count("COMPLETED") >= 1
    text = inspect.getsource(page)
    for home in _HOMES:
        public = set(home.__all__) - {"__version__", "stopping"}
        assert {name for name in public if not re.search(rf"\b{home.__name__}\.{name}\b", text)} == set()


@cache
def kernel_searcher() -> NewSearcher:
    """The example of a searcher; its class is made once, as a registry has its name."""
    path = ROOT / "examples" / "kernel_searcher.py"
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(path.read_text(), path, "exec"), names)
    found: NewSearcher = names["KernelSearcher"]
    return found


class TestKernelSearcher(SearcherContract):
    """The searcher of the examples keeps the contract."""

    space: ClassVar[dict[str, Any]] = {
        "lr": mqtune.loguniform(1e-4, 1),
        "opt": mqtune.choice([{"name": "adam"}, {"name": "sgd", "momentum": mqtune.uniform(0, 1)}]),
    }

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return kernel_searcher()
