"""The programs and commands of tutorials and guides work as written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT
from partners import in_this_syne_tune
from walkthrough import Block, Walkthrough, blocks_of, walkthrough

GUIDES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("after-the-search",)]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
#: Pages with a program of another library beside mqtune's.
FROM_OTHERS = sorted((ROOT / "docs" / "how-to").glob("from-*.md"))
#: Programs on these pages that have no other side, as they run the other library's own loop.
OVER_WORKERS = {"study.py", "over_workers.py"}

#: Enough to show that a page's program runs.
TRIALS = 4
#: On a busy machine a process takes half a minute to import PyTorch, which CI doesn't install.
PATIENCE_WITH_PYTORCH_S = 300.0


@pytest.mark.timeout(3 * PATIENCE_WITH_PYTORCH_S)
@pytest.mark.parametrize("page", [*TUTORIALS, *GUIDES], ids=lambda page: page.stem)
def test_a_tutorial_works_as_written(page: Path, tmp_path: Path) -> None:
    patience = {}
    if page.stem == "pytorch":
        pytest.importorskip("torch")
        patience = {"patience_s": PATIENCE_WITH_PYTORCH_S}
    with walkthrough(tmp_path / "walk", **patience) as walked:
        # The first tutorial shows the default searcher, which is Optuna's.
        walked.imports_optuna = page.stem == "first"
        walked.follow(page)


@pytest.fixture(scope="module")
def with_a_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walkthrough]:
    """A folder whose programs run on a worker that is there already."""
    with walkthrough(tmp_path_factory.mktemp("guides") / "code", trials=TRIALS) as walked:
        for title, text in (
            ("Terminal 1", "$ redis-server --port 6379\n… Ready to accept connections\n"),
            ("", "$ export MQTUNE_BROKER=redis://127.0.0.1:6379/0\n"),
            ("Terminal 2", "$ mqtune worker --gpus 0 --slots 2\n… ready.\n"),
        ):
            walked.take(Block("console", title, text))
        yield walked


@pytest.mark.parametrize("page", FROM_OTHERS, ids=lambda page: page.stem)
def test_mqtunes_side_of_a_guide_runs(page: Path, with_a_worker: Walkthrough) -> None:
    programs = [block for block in blocks_of(page) if block.title.startswith("mqtune")]
    sides = [block for block in blocks_of(page) if block.language == "python" and block.title not in OVER_WORKERS]

    assert len(sides) == 2 * len(programs)
    for number, block in enumerate(programs):
        name = block.title.partition(": ")[2]
        program = name or f"{page.stem.replace('-', '_')}_{number}.py"
        with_a_worker.imports_optuna = '"tpe"' in block.text
        with_a_worker.take(block._replace(title=program))
        if not name:
            with_a_worker.take(Block("console", "", f"$ python {program}\n"))


def test_the_program_of_the_page_about_optunas_studies_runs(with_a_worker: Walkthrough) -> None:
    page = ROOT / "docs" / "how-to" / "from-optuna.md"
    (block,) = [block for block in blocks_of(page) if block.title == "study.py"]

    with_a_worker.imports_optuna = True
    # Of a study of a hundred trials the first ones show what there is to see.
    with_a_worker.take(Block("python", "study.py", block.text.replace("n_trials=100", "n_trials=3")))
    with_a_worker.take(Block("console", "", "$ python study.py\n{'x': …"))


#: Programs of pages about a library that CI doesn't install, with replacements that shorten them from minutes to seconds.
OF_PARTNERS = {
    "ax": {"max_trials=20": "max_trials=3", "run_n_trials(12)": "run_n_trials(2)", "range(1, 31)": "range(1, 4)"},
    "syne_tune": {"head:": "127.0.0.1:", "/shared": ".", "time=3600": "time=3", "n_workers=8": "n_workers=2"},
}
#: The page of each, and the title of its programs there.
PAGES_OF_PARTNERS = {"ax": ("ax.md", ""), "syne_tune": ("how-to/from-syne-tune.md", "over_workers.py")}
#: The script that the page about Syne Tune tunes.
SCRIPT = """
import argparse
import time

from syne_tune import Reporter

parser = argparse.ArgumentParser()
for name in ("lr", "width", "epochs", "st_checkpoint_dir"):
    parser.add_argument(f"--{name}")
given, _ = parser.parse_known_args()
report = Reporter()
for epoch in range(1, int(given.epochs) + 1):
    time.sleep(0.05)
    report(epoch=epoch, loss=float(given.lr) / epoch)
"""


@pytest.mark.parametrize("partner", OF_PARTNERS)
def test_the_programs_of_a_page_about_a_partner_run(partner: str, with_a_worker: Walkthrough) -> None:
    pytest.importorskip(partner, reason=f"pip install 'mqtune[{partner.replace('_', '-')}]'")
    page, title = PAGES_OF_PARTNERS[partner]
    blocks = blocks_of(ROOT / "docs" / page)
    text = "\n\n".join(block.text for block in blocks if block.language == "python" and block.title == title)
    for long, short in OF_PARTNERS[partner].items():
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    if partner == "syne_tune":
        text = in_this_syne_tune(text)

    with_a_worker.imports_optuna = True
    with_a_worker.take(Block("python", "train.py", SCRIPT))
    with_a_worker.take(Block("python", f"of_{partner}.py", text))
    with_a_worker.take(Block("console", "", f"$ python of_{partner}.py\n"))
