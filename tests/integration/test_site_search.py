"""The search of the documentation's site answers the questions of a user's first week, in the user's words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from built_site import built_site
from chromium import NEEDS_CHROMIUM, started_chromium
from waiting import eventually

pytestmark = NEEDS_CHROMIUM

#: How long a page may take on a busy machine.
PAGE_S: Final = 60.0
#: Number of hits that a user looks at.
FIRST: Final = 3
#: The pages, or the sections of a page, that answer a question. One of them is enough.
ANSWERS: Final = {
    # Of a review by a newcomer.
    "resume on another machine": ["questions#resume-after-ctrl-c-or-a-crash-also-on-another-machine"],
    "2 GPUs a trial": ["questions#2-gpus-for-a-trial-or-several-nodes-distributed-training-ddp", "tutorials/pytorch"],
    "limit time": ["questions#limit-the-time-or-stop-at-a-target-value"],
    "log to W&B": ["questions#log-to-weights-biases-wb-mlflow-or-tensorboard", "loggers"],
    "custom searcher": ["questions#a-custom-searcher-scheduler-or-stop-rule", "search", "extensions"],
    "pruning by validation loss": ["questions#early-stopping-and-pruning-by-validation-loss"],
    "save only best 3": ["questions#save-only-the-best-checkpoints-or-the-best-3"],
    "Slurm": ["how-to/clusters"],
    "several metrics": ["questions#several-metrics-multiple-objectives-and-the-pareto-front", "search"],
    "retrain the best": ["how-to/after-the-search#retrain-the-best"],
    "environment variables per trial": ["processes#environment-variables"],
    "stop a trial": ["questions#stop-a-trial-or-pause-and-resume-one", "cli"],
    "stdout of a trial": ["questions#see-the-stdout-log-or-printed-output-of-a-trial"],
    "share a fleet": ["how-to/shared-fleet"],
    "upgrade mqtune": ["installation#upgrade-a-fleet"],
    # Of users of other tuners.
    "out of memory": ["questions#out-of-memory-oom"],
    "Ctrl-C resume": ["questions#resume-after-ctrl-c-or-a-crash-also-on-another-machine"],
    "use one GPU for several trials": ["questions#several-trials-on-one-gpu-share-a-gpu"],
    "seed": ["questions#seed-reproducible-results", "processes#seeds"],
    "DataFrame of results": ["questions#dataframe-or-csv-of-the-results", "results#data-frames"],
    "conditional parameters": ["questions#conditional-parameters-which-depend-on-others", "search"],
    "early stopping": ["questions#early-stopping-and-pruning-by-validation-loss"],
    "which extra do I need?": ["installation#which-extra-to-install"],
    "why does nothing start": ["questions#nothing-starts-or-a-trial-is-stuck-as-pending"],
    "delete an experiment": ["clean-up"],
    "jupyter notebook": ["questions#use-it-in-a-jupyter-notebook", "results"],
    "retry failed trials": ["questions#retry-a-failed-trial-or-end-the-run-at-the-first-failure"],
    "working directory of a trial": ["processes"],
    "limit number of parallel trials": ["questions#parallel-trials-limit-the-number-of-concurrent-trials"],
    "deploy the best model": ["how-to/after-the-search#load-and-deploy-the-best-model"],
    "hyperopt": ["how-to/from-hyperopt"],
    "large dataset": ["questions#pass-a-large-dataset-to-trials"],
}
TYPE: Final = """
const box = document.querySelector(".md-search__input");
box.value = arguments[0];
box.dispatchEvent(new KeyboardEvent("keyup"));
"""
#: The links of the first hits. Those below "more on this page" need another click.
HITS: Final = f"""
const items = [...document.querySelectorAll(".md-search-result__item")].slice(0, {FIRST});
const links = items.map((item) => [...item.querySelectorAll(":scope > a.md-search-result__link")]);
return links.map((item) => item.map((link) => new URL(link.href)).map(({{ pathname, hash }}) => pathname + hash));
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """The address of the built site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=built)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started_chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def search(site: str, browser: Any) -> Callable[[str], list[list[str]]]:
    """Types a question into the search box, and returns the pages and sections of the first hits."""
    browser.get(f"{site}/index.html")
    browser.execute_script("document.querySelector('#__search').click()")

    def search(question: str) -> list[list[str]]:
        browser.execute_script(TYPE, "")
        eventually(lambda: not browser.execute_script(HITS), PAGE_S)
        browser.execute_script(TYPE, question)
        eventually(lambda: browser.execute_script(HITS), PAGE_S, question)
        return [[path.strip("/").replace(".html", "") for path in hit] for hit in browser.execute_script(HITS)]

    return search


@pytest.mark.parametrize("question", ANSWERS)
def test_a_first_hit_of_the_search_answers(question: str, search: Callable[[str], list[list[str]]]) -> None:
    hits = search(question)

    assert [link for hit in hits for link in hit if is_answer(question, link)], hits


def is_answer(question: str, link: str) -> bool:
    return any(link == answer or link.startswith(f"{answer}#") for answer in ANSWERS[question])


def test_stop_words_change_no_hit(search: Callable[[str], list[list[str]]]) -> None:
    assert search("where is the log of a trial") == search("log trial")


def test_sources_of_examples_are_no_hits(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    pages = {entry["location"].partition("#")[0] for entry in index["docs"]}

    # The navigation has these.
    in_navigation = {"files/workers/index.html", "files/examples/cheat_sheet.py.html"}
    assert {page for page in pages if page.startswith("files/")} == in_navigation


def test_each_answer_exists(built: Path) -> None:
    missing = []
    for answer in {answer for answers in ANSWERS.values() for answer in answers}:
        page, _, section = answer.partition("#")
        path = built / f"{page}.html"
        if not path.is_file() or (section and f'id="{section}"' not in path.read_text()):
            missing.append(answer)

    assert missing == []
