"""The page in a real browser: its views, its liveness, its accessibility, and texts of trials, which stay texts."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from book import ASHA, Book
from chromium import BACKSPACE, ESCAPE, HOME, NEEDS_CHROMIUM, SPACE, TAB, started_chromium
from click.testing import CliRunner
from test_client import NAME, AnsweringDriver

from mqtune.cli import group, ui
from mqtune.cli.place import Place
from mqtune.cli.ui.access import Access
from mqtune.cli.ui.app import Page
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.server import server_of
from mqtune.core.events import AttemptStarted, CheckpointSaved, Cursor, Event, Labelled
from mqtune.core.keys import QUOTAS
from mqtune.core.trial import AttemptEnd, Report, TrialId
from mqtune.core.usage import DeviceUse, LiveUse
from mqtune.core.worker_info import busy_as
from mqtune.driver import BundleFolder
from mqtune.journal import JOURNAL_FILE, JournalFile
from mqtune.results import Readable, saved_events
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand
from mqtune.services.usage.board import UsageBoard
from mqtune.testing import waiting
from mqtune.trainable import Bundle, File

pytestmark = NEEDS_CHROMIUM

#: A checker of accessibility, which runs in the page.
AXE: Final = (Path(__file__).parents[1] / "axe" / "axe.min.js").read_text(encoding="utf-8")
#: The pause between two checks of a page.
CHECK_S: Final = 0.06
#: How long a page may take on a busy machine.
PAGE_S: Final = 60.0
#: A name that a trial may choose in order to run a script on the page.
MARKUP: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
#: Code that a driver may bring.
HOSTILE: Final = Bundle.of({MARKUP: File(f"# source\n{MARKUP}".encode())})


def eventually(condition: Callable[[], object], timeout_s: float = PAGE_S) -> object:
    """Wait until a condition holds, for as long as a page may take.

    The pause spares the processor: for most conditions the browser has to lay out the page.
    """
    return waiting.eventually(lambda: condition() or time.sleep(CHECK_S), timeout_s)


class Browser:
    """A browser that has a page open."""

    def __init__(self, driver: Any, url: str, token: str) -> None:
        self.driver = driver
        self.url = url
        self.token = token
        #: A text in the browser's complaints about an answer that the test provokes.
        self.expected = "\0"
        self.open()

    def open(self) -> None:
        """Open the URL that the command prints."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#token={self.token}")
        # Before the page has read it, a test would have no token.
        eventually(lambda: "token" not in self.run("return location.hash"))

    def find(self, found: str) -> Any:
        """Return an element by its CSS selector, or by an XPath that begins with two slashes."""
        return self.driver.find_element("xpath" if found.startswith("//") else "css selector", found)

    def draws(self, *kinds: str) -> None:
        """Wait until the cards of these kinds have pictures."""
        for kind in kinds:
            card = f"document.querySelector('[data-kind={kind}]')"
            eventually(lambda card=card: self.run(f"{card}?.scrollIntoView(); return Boolean({card})"))
            eventually(lambda card=card: self.run(f"return {card}.querySelectorAll('.trace, .bars, .meter').length"))

    def go(self, where: str) -> None:
        self.run(f"location.hash = {where!r}")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    @property
    def text(self) -> str:
        found: str = self.run("return document.body.innerText")
        return found

    def shows(self, *texts: str) -> None:
        """Wait until all of these are on the page at the same time."""
        missing = [*texts]

        def is_shown() -> bool:
            shown = self.text
            missing[:] = [text for text in texts if text not in shown]
            return not missing

        with contextlib.suppress(AssertionError):
            eventually(is_shown, PAGE_S)
        assert missing == [], self.text

    def complaints(self, *expected: str) -> list[str]:
        """Return the browser's errors and warnings since the last call."""
        messages = [each["message"] for each in self.driver.get_log("browser")]
        return [message for message in messages if not any(each in message for each in expected)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ui-pages")


@pytest.fixture(scope="module")
def books(home: Path) -> dict[str, Book]:
    return {"mine": mine(home), "hostile": hostile(home), "growing": mine(home, "growing")}


def mine(home: Path, name: str = "mine") -> Book:
    book = Book(home / name, scheduler=ASHA)
    for number in range(1, 31):
        id_ = f"{number:04}"
        book.stage(id_, {"lr": number / 10, "width": 2**number})
        epochs = range(1, 2 + number % 9)
        book.report(id_, *({"loss": 1 / number / epoch, "training_iteration": epoch} for epoch in epochs))
        if number == 8:
            saved = CheckpointSaved(trial=TrialId(id_), attempt=1, checkpoint="p-0008-1-1", at=book.now)
            book.cursor = Cursor(book.write(saved.encode()))
        if number % 3:
            book.decide(id_)
        book.end(id_, AttemptEnd.STOPPED if number % 3 else AttemptEnd.COMPLETED)
    book.save()
    return book


def hostile(home: Path) -> Book:
    book = Book(home / "hostile", metric=MARKUP)
    for number in range(1, 6):
        id_ = f"{number:04}"
        book.stage(id_, {MARKUP: number, "lr": f"{MARKUP}{number}"}, start=False)
        environment = {"python": MARKUP, "packages": {MARKUP: MARKUP}, "code": MARKUP, "bundle": HOSTILE.digest}
        book.start(id_, environment=environment)
        book.report(id_, {MARKUP: 1 / number, f"other{MARKUP}": number})
        failed = {"error": MARKUP, "error_type": MARKUP, "stdout_tail": MARKUP}
        book.end(id_, **(failed if number == 1 else {}), end=AttemptEnd.FAILED if number == 1 else AttemptEnd.COMPLETED)
    label = Labelled(trial="0002", tags=[MARKUP], notes=MARKUP, by=MARKUP, at=book.now, cursor=book.cursor)
    book.write(label.encode())
    book.save()
    BundleFolder(book.folder).keep(HOSTILE)
    return book


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started_chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@contextlib.contextmanager
def serving(driver: Any, places: Places, *, steers: bool = False) -> Iterator[Browser]:
    """A browser with the page of a server that runs in a thread of this process."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    access = Access("127.0.0.1", port, ())
    server = server_of(Page(places, access, steers=steers))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield Browser(driver, f"http://127.0.0.1:{port}", access.token)
    finally:
        driver.get("about:blank")
        server.end()
        thread.join(20)


@pytest.fixture(scope="module")
def opened(driver: Any, home: Path, books: dict[str, Book]) -> Iterator[Browser]:
    places = Places([Place(name, home / name, None) for name in books], None, broker_alone=False)
    with serving(driver, places) as found:
        yield found


@pytest.fixture
def browser(opened: Browser) -> Iterator[Browser]:
    opened.expected = "\0"
    if not opened.driver.current_url.startswith(opened.url):
        opened.open()
    yield opened
    opened.go("#/")
    opened.shows("growing")
    assert opened.complaints(opened.expected) == []


def test_an_experiment_has_tabs_with_its_figures_pictures_and_log(browser: Browser):
    browser.go("#/e/mine")
    browser.shows("minimise loss", "stopping ASHA", "Best loss ↓", "at iteration 9", "10 completed · 20 stopped early")
    browser.shows("Saved by early stopping", "Best trials", "all trials")
    browser.draws("history", "curves", "importances")
    # A Pareto front takes several metrics.
    assert browser.run("return document.querySelector('[data-kind=pareto]')") is None
    browser.find(".tabs a:nth-child(2)").click()
    browser.shows("width", "0030")
    browser.find(".tabs a:nth-child(3)").click()
    browser.shows("Compare loss at", "iteration 1", "each trial's best")
    browser.draws("slices", "pair", "parallel")
    pair = "document.querySelector('[data-kind=pair]')"
    titles = f"const {{xaxis, yaxis}} = {pair}.querySelector('.plot')._fullLayout; return [xaxis.title.text, yaxis.title.text]"
    eventually(lambda: sorted(browser.run(titles)) == ["lr", "width"])
    x, y = browser.run(titles)
    browser.run(
        f"const axis = {pair}.querySelector('[aria-label=x]'); axis.value = {y!r}; axis.dispatchEvent(new Event('change'))"
    )
    eventually(lambda: browser.run(titles) == [y, x])
    browser.find(".tabs a:nth-child(4)").click()
    browser.draws("rungs", "timeline")
    eventually(lambda: browser.run("return document.querySelector('[data-kind=lineage]').hidden"))
    browser.find(".tabs a:nth-child(5)").click()
    browser.shows("0030", "completed", "stopped early after report 3 by the scheduler: rung 1")


def test_the_list_is_searched_sorted_and_compared(browser: Browser):
    browser.open()
    browser.go("#/?sort=name")
    eventually(lambda: rows(browser) == ["growing", "hostile", "mine"])
    # A list needs no chart, and so no Plotly.
    assert browser.run("return document.querySelectorAll('script[src*=plotly]').length") == 0
    browser.find("//th/button[starts-with(., 'progress')]").click()
    eventually(lambda: "sort=progress" in browser.run("return location.hash"))
    browser.find("input[type=search]").send_keys("MIN")
    browser.shows("1 of 3")
    browser.find("[aria-label='select mine']").click()
    browser.find("input[type=search]").send_keys(3 * BACKSPACE)
    browser.shows("1 selected", "hostile")
    browser.find("[aria-label='select hostile']").click()
    click(browser, "Compare")

    browser.shows("Side by side", "best config: width", "5 of 5")
    browser.draws("runs", "bests", "parameters")
    # Two metrics have two charts.
    assert browser.run("return document.querySelectorAll('[data-kind=runs] .plot').length") == 2
    check_text_alone(browser)


def test_the_list_is_grouped_by_urgency(browser: Browser):
    browser.go("#/")

    browser.shows("Needs attention", "driver away")
    assert browser.run("return document.querySelectorAll('tr.group').length") == 1


def test_trials_are_filtered_sorted_and_shown_by_the_chosen_columns(browser: Browser):
    browser.expected = "status of 40"
    browser.go("#/e/mine?tab=trials")
    browser.shows("All 30", "Stopped early 20", "width")

    filter_by(browser, "lr<0.35")
    browser.shows("3 of 30")
    browser.find("//th/button[.='width']").click()
    eventually(lambda: rows(browser) == ["0001", "0002", "0003"])
    browser.find("//th/button[starts-with(., 'width')]").click()
    eventually(lambda: rows(browser) == ["0003", "0002", "0001"])
    browser.find("//div[@class='segments']/button[starts-with(., 'Completed')]").click()
    eventually(lambda: rows(browser) == ["0003"])
    assert browser.run("return document.querySelector('input[type=search]').value") == "lr<0.35 and status=completed"
    browser.find("[aria-label='columns']").click()
    browser.find("//label[contains(., 'width')]/input").click()
    eventually(lambda: not browser.driver.find_elements("xpath", "//th/button[starts-with(., 'width')]"))
    # The browser remembers it.
    browser.go("#/")
    browser.shows("growing")
    browser.go("#/e/mine?tab=trials")
    browser.shows("All 30", "worker")
    assert not browser.driver.find_elements("xpath", "//th/button[starts-with(., 'width')]")
    browser.run("localStorage.clear()")
    filter_by(browser, "depth=1")
    browser.shows("no trial has 'depth'", "showing the last valid filter")
    assert browser.run("return document.querySelector('input[type=search]').classList.contains('wrong')")


def filter_by(browser: Browser, text: str) -> None:
    browser.find("input[type=search]").clear()
    browser.find("input[type=search]").send_keys(text)


def test_selected_trials_stand_side_by_side_and_go_into_a_file(browser: Browser):
    browser.go("#/e/mine?tab=trials")
    browser.shows("All 30")
    for trial in ("0030", "0028"):
        browser.find(f"[aria-label='select trial {trial}']").click()
    browser.shows("2 selected", "0030, 0028")
    # Nothing is written to a disk here.
    browser.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.written = text; }); return '#'; }"
    )
    click(browser, "More")
    browser.find("//button[starts-with(., 'Export CSV')]").click()
    browser.shows("2 trials written to mine.csv")
    assert "0030" in str(eventually(lambda: browser.run("return window.written")))
    # The page only reads.
    assert not browser.driver.find_elements("xpath", "//button[starts-with(., 'Pause')]")
    click(browser, "Compare")

    browser.shows("Side by side", "2.80")
    differ = "return [...document.querySelectorAll('tr.differs td:first-child')].map((each) => each.innerText)"
    assert {"lr", "width", "loss"} <= set(browser.run(differ))


def test_keys_move_select_and_open_and_none_steers(browser: Browser):
    browser.go("#/e/mine")
    browser.shows("Best trials")
    body = browser.find("body")
    body.send_keys("2")
    browser.shows("All 30")
    pane = browser.find(".window")
    pane.send_keys(HOME)
    browser.driver.switch_to.active_element.send_keys(SPACE)
    browser.shows("1 selected")
    browser.driver.switch_to.active_element.send_keys(ESCAPE)
    eventually(lambda: "1 selected" not in browser.text)
    browser.find("body").send_keys("/lr>2")
    browser.shows("10 of 30")
    browser.driver.switch_to.active_element.send_keys(TAB)
    browser.find("body").send_keys("?")
    browser.shows("Keyboard", "select a row")
    click(browser, "Close")
    browser.find("body").send_keys("gf")
    browser.shows("Workers")


def test_a_link_brings_back_the_state_of_each_chart(browser: Browser):
    curves = "document.querySelector('[data-kind=curves]')"
    lines = f"return {curves}.querySelectorAll('.legend .key[aria-pressed=true]').length"
    scale = f"return {curves}?.querySelector('.plot')?._fullLayout?.yaxis.type"

    browser.go(
        '#/e/mine?chart=curves&curves.y=log&curves.smooth=0.6&curves.hidden=["stopped early"]&history.x=trial&hide=1'
    )

    eventually(lambda: browser.run(scale) == "log")
    hidden = f"return {curves}.querySelector('.key[aria-pressed=false]')?.innerText ?? ''"
    # Without early-stopped trials, it has no such entry.
    assert browser.run(hidden) == ""
    browser.find("//label[contains(., 'hide early-stopped')]/input").click()
    eventually(lambda: str(browser.run(hidden)).startswith("stopped early"))
    before = browser.run(lines)
    browser.run(f"{curves}.querySelector('.key[aria-pressed=false]').click()")
    eventually(lambda: browser.run(lines) == before + 1)
    change = f"const axis = {curves}.querySelector('[aria-label=\"%s\"]'); axis.value = '%s'; axis.dispatchEvent(new Event('change'))"
    browser.run(change % ("scale", "linear"))
    eventually(lambda: browser.run(scale) == "linear")
    browser.run(change % ("x", "time"))
    eventually(lambda: "since the first report" in browser.run(f"return {curves}.innerText"))
    browser.run(f"{curves}.querySelector('.controls .icon').click()")
    click(browser, "Copy link")
    eventually(lambda: "curves.x=time" in browser.run("return location.hash"))
    link = browser.run("return location.hash")
    assert "curves.smooth=0.6" in link
    assert "history.x=trial" in link
    # A point shows its trial and config.
    point = "{text: '0030', x: 1, y: 2, data: {name: 'completed'}}"
    hover = f"{{points: [{point}], event: {{clientX: 9, clientY: 9}}}}"
    browser.run(f"{curves}.querySelector('.plot').emit('plotly_hover', {hover})")
    browser.shows("trial 0030 · completed", "lr = 3")
    # A link to a chart opens its tab.
    browser.go("#/")
    browser.shows("growing")
    browser.go("#/e/mine?chart=rungs")
    browser.draws("rungs")


def test_the_points_of_a_chart_are_shown_as_a_table(browser: Browser):
    browser.go("#/e/mine")
    browser.draws("history")
    browser.run("document.querySelector('[data-kind=history] .controls .icon').click()")
    click(browser, "Show as table")

    browser.shows("points", "series")
    assert browser.run("return document.querySelectorAll('dialog tbody tr').length") > 30
    click(browser, "Close")


def rows(browser: Browser) -> Any:
    return browser.run("return [...document.querySelectorAll('tbody tr[data-id]')].map((row) => row.dataset.id)")


def test_a_trial_has_its_config_beside_the_best_its_curves_and_its_attempts(browser: Browser):
    browser.go("#/e/mine?tab=trials")
    browser.shows("All 30")
    browser.go("#/e/mine/0008")

    browser.shows("mine / trial 0008", "best: trial 0026", "w1@host", "rung 1", "9 reports")
    # Metrics are in a few digits, and in full under the mouse.
    assert browser.run("return document.querySelector('td[title^=\"0.01388888\"]').innerText") == "0.01389"
    eventually(lambda: browser.run("return document.querySelectorAll('[data-kind=trial] .trace').length"))
    browser.expected = "status of 404"
    click(browser, "p-0008-1-1")
    browser.shows("Files of a checkpoint", "the files of checkpoint p-0008-1-1 are not on this machine")
    browser.run("history.back()")
    browser.shows("All 30")
    browser.go("#/e/mine/8")
    browser.shows("mine / trial 0008", "best: trial 0026", "9 reports")


def test_a_page_has_the_progress_while_a_long_journal_is_opened(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    book, gate = mine(tmp_path, "long"), threading.Event()

    def slowly(part: Readable) -> Iterator[Event | Report]:
        for number, event in enumerate(saved_events(part)):
            if number == 20:
                assert gate.wait(2 * PAGE_S)
            yield event

    monkeypatch.setattr("mqtune.results.followed.saved_events", slowly)
    with serving(driver, Places([Place("long", book.folder, None)], None, broker_alone=False)) as page:
        try:
            page.go("#/e/long")
            page.shows("long", "opening the journal: ", f" of {len(book.entries)} entries")
            (entries,) = re.findall(r"journal: (\d+) of", page.text)
            assert 0 < int(entries) <= 20
            page.go("#/e/long/0008")
            page.shows("trial 0008", "opening the journal: ")
        finally:
            gate.set()
        page.go("#/e/long")
        page.shows("Trials 30", "minimise loss")
        assert "opening the journal" not in page.text
        assert page.complaints() == []


def test_an_experiment_that_is_not_there_is_said_so_once_and_a_finished_one_is_offered_no_end(
    driver: Any, tmp_path: Path
):
    for name in ("there", "ended"):
        book = Book(tmp_path / name)
        book.run("0001", 0.5)
        if name == "ended":
            book.finish()
        book.save()
    places = [Place(name, tmp_path / name, None) for name in ("there", "ended")]
    with serving(driver, Places(places, None, broker_alone=False), steers=True) as page:
        page.go("#/e/thre")

        page.shows('There is no experiment "thre" here', "Do you mean there?", "All experiments")
        assert page.run("return document.querySelectorAll('.tabs, .actions, main button').length") == 0
        page.go("#/e/there")
        page.shows("Trials 1", "End…", "Limits…")
        page.go("#/e/ended")
        page.shows("Trials 1", "finished")
        eventually(lambda: "End…" not in page.text)
        page.go("#/e/100%")
        page.shows('There is no experiment "100%" here')
        assert page.complaints("status of 404") == []


def test_texts_of_trials_stay_texts(browser: Browser):
    browser.expected = "status of 404"
    browser.go("#/e/hostile")
    browser.shows("Trials 5", MARKUP[:10])
    browser.draws("history", "curves")
    check_text_alone(browser)
    for tab in ("trials", "parameters", "schedule", "log"):
        browser.go(f"#/e/hostile?tab={tab}")
        browser.shows(MARKUP[:10] if tab != "schedule" else "Timeline")
        check_text_alone(browser)
    for trial in ("0001", "0002"):
        browser.go(f"#/e/hostile/{trial}")
        browser.shows(f"trial {trial}", MARKUP, f"other{MARKUP}"[:20])
        eventually(lambda: browser.run("return document.querySelectorAll('[data-kind=trial] .trace').length"))
        click(browser, f"bundle {HOSTILE.digest[:12]}")
        browser.shows("1 file", MARKUP)
        browser.run("document.querySelector('.files button').click()")
        browser.shows(f"# source\n{MARKUP}")
        check_text_alone(browser)
    browser.go("#/")
    browser.shows(MARKUP)
    check_text_alone(browser)
    # A name in the address is text, too.
    browser.go(f"#/e/{quote(MARKUP, safe='')}")
    browser.shows(MARKUP, "There is no experiment")
    check_text_alone(browser)


def check_text_alone(browser: Browser) -> None:
    assert browser.run("return [window.hacked, document.querySelectorAll('img, iframe, main script').length]") == [
        None,
        0,
    ]


#: Notes that would run a script or fetch a file if they were more than Markdown.
HOSTILE_NOTES: Final = f"""# Title {MARKUP}

- **bold** and *slanted* `code <b>`
- [link](https://example.org/a?b=c "t") [good](https://example.org/x)
- [bad](javascript:window.hacked=1) [worse](JaVaScRiPt:window.hacked=1) [data](data:text/html,<script>window.hacked=1</script>)
- ![image](https://example.org/x.png) <a href="javascript:window.hacked=1">a</a> <iframe src="https://example.org"></iframe>
- [![x](x)](javascript:window.hacked=1) [a](\tjavascript:window.hacked=1) [b](//example.org) [c](vbscript:x)

```
{MARKUP}
```

> {MARKUP}

1. first {"*" * 1000}

x {"`" * 2001}

{"[" * 1500} {"_" * 1000} {"**a " * 300} # {" " * 500}x
"""


def test_notes_are_markdown_without_html(driver: Any, tmp_path: Path):
    book = Book(tmp_path / "noted")
    book.run("0001", 0.5)
    label = Labelled(trial="", tags=["one"], notes=HOSTILE_NOTES, by="somebody", at=book.now, cursor=book.cursor)
    book.write(label.encode())
    book.save()
    places = Places([Place("noted", book.folder, None)], None, broker_alone=False)
    with serving(driver, places) as page:
        page.go("#/e/noted")
        page.shows("Title <img", "javascript:window.hacked")

        found = "return [...document.querySelectorAll('.notes %s')].map((each) => each.textContent)"
        assert page.run(found % "strong") == ["bold"]
        assert page.run(found % "em") == ["slanted"]
        assert page.run(found % "blockquote") == [MARKUP]
        assert page.run(found % "pre") == [MARKUP]
        links = page.run("return [...document.querySelectorAll('.notes a')].map((each) => each.href)")
        assert "https://example.org/x" in links
        # Every link is a plain address.
        assert [each for each in links if not each.startswith("https://example.org")] == []
        check_text_alone(page)
        assert page.complaints() == []


def test_a_report_is_on_the_screen_at_once(browser: Browser, home: Path, books: dict[str, Book]):
    book, file = books["growing"], JournalFile(home / "growing" / JOURNAL_FILE)
    with contextlib.closing(file):
        file.begin(book.entries)
        browser.go("#/e/growing")
        browser.shows("Trials 30", "Best trials")
        written = len(book.entries)
        book.stage("0031", {"lr": 0.1, "width": 3})
        file.append(book.entries[written:])
        browser.shows("Trials 31")
        took = (seconds_until_shown(browser, book, file, 1e-4 / number) for number in range(1, 20))
        # One of several, as the machine may be busy. On an idle one each takes a tenth of that.
        assert any(seconds < 1 for seconds in took)


def test_no_link_of_the_page_is_absolute_so_that_a_proxy_may_have_it_below_any_path():
    absolute = re.compile(r"""(src|href)=["']/|(fetch|import|EventSource)\(["'`]/|from ["']/""")
    files = [file for file in Path(ui.__file__).parent.glob("assets/*") if file.suffix != ".svg"]
    assert files
    assert [file.name for file in files if absolute.search(file.read_text())] == []


def seconds_until_shown(browser: Browser, book: Book, file: JournalFile, value: float) -> float:
    """Report a new best value, and return the seconds until the page shows it."""
    browser.run(
        "window.shown = 0; const look = new MutationObserver(() => {"
        f"if (!window.shown && document.querySelector('.tile.best .figure').textContent === '{value:.4g}') window.shown = Date.now();"
        "}); look.observe(document.querySelector('.strip'), {childList: true, subtree: true});"
    )
    # A pause after the former report must be over.
    time.sleep(0.3)
    written = len(book.entries)
    book.report("0031", {"loss": value, "training_iteration": 1})
    began = time.time()
    file.append(book.entries[written:])
    eventually(lambda: browser.run("return window.shown"))
    return float(browser.run("return window.shown")) / 1000 - began


def test_without_the_token_there_is_a_place_to_give_it(browser: Browser):
    browser.expected = "status of 401"
    browser.driver.delete_all_cookies()
    browser.driver.get(f"{browser.url}/")
    browser.shows("open the URL that mqtune ui printed, with its token")

    browser.find("input").send_keys("wrong\n")

    browser.shows("this is not the token")
    # The wrong token is still in the field.
    browser.find("input").clear()
    browser.find("input").send_keys(browser.token + "\n")
    browser.shows("mine", "hostile", "0.004274", "loss ↓", "30 / 30")
    assert browser.run("return document.cookie") == ""


@pytest.fixture
def drives(redis_client: Any) -> Iterator[AnsweringDriver]:
    driver = AnsweringDriver(redis_client)
    yield driver
    driver.end()


@pytest.fixture
def steering(driver: Any, redis_server: Any, drives: AnsweringDriver) -> Iterator[Browser]:
    """A page that may steer an experiment with two trials, which wait."""
    with serving(driver, Places([], redis_server.url, broker_alone=True), steers=True) as page:
        yield page
        assert page.complaints() == []


def asked(drives: AnsweringDriver) -> list[tuple[str, str, dict[str, object]]]:
    return [(each.action, each.trial, each.arguments) for each in drives.seen]


WHY: Final = {"reason": "by hand, on the live page"}


def test_a_trial_is_paused_and_ended_by_its_buttons(steering: Browser, drives: AnsweringDriver):
    page = steering
    page.shows("steered")
    page.go("#/e/steered/0001")
    page.shows("steered / trial 0001", "Pause", "no worker is connected · start one: mqtune worker")
    click(page, "Pause")
    page.shows("trial 0001 paused", "Undo")
    click(page, "Stop…")
    page.shows("Stop trial 0001?", "This can't be undone.", "Count it as", "not tried again")
    page.find("input[value=fail]").click()
    click(page, "Stop trial 0001")
    page.shows("can't fail trial 0001", "trial 0001 has ended already")

    assert asked(drives) == [("pause", "0001", WHY), ("fail", "0001", WHY)]


def test_selected_trials_are_steered_by_the_bar_below_them(steering: Browser, drives: AnsweringDriver):
    page = steering
    page.go("#/e/steered")
    # Trials wait, and none runs.
    page.shows("waiting for a slot", "trial 0001 has been waiting for", "mqtune worker")
    page.go("#/e/steered?tab=trials")
    # Nothing is offered before a selection.
    page.shows("All 2")
    assert "Pause" not in page.text
    page.find("[aria-label^='select all']").click()
    page.shows("2 selected", "Pause", "Stop…")
    click(page, "Stop…")
    page.shows("Stop 2 trials?", "0001, 0002", "Count them as")
    click(page, "Keep running")
    page.find("[aria-label='select trial 0001']").click()
    page.shows("1 selected")
    click(page, "More")
    page.shows("none is paused")
    page.find("body").send_keys(ESCAPE)
    click(page, "Pause")
    page.shows("trial 0002 paused")

    assert asked(drives) == [("pause", "0002", WHY)]


def test_an_experiment_is_labelled_limited_and_ended_by_its_buttons(steering: Browser, drives: AnsweringDriver):
    page = steering
    page.go("#/e/steered")
    click(page, "add tags or notes")
    page.find("[aria-label=tags]").send_keys("good, new")
    page.find("[aria-label=notes]").send_keys("look **again**")
    click(page, "Save")
    eventually(lambda: [each.action for each in drives.seen] == ["label"])
    eventually(lambda: "add tags or notes" not in page.text and "look again" in page.text)
    click(page, "Limits…")
    page.find("[aria-label='max trials']").clear()
    page.find("[aria-label='max trials']").send_keys("7")
    click(page, "Apply")
    page.shows("steered has new limits: max_trials=7")
    click(page, "End…")
    page.shows("End steered?", "This can't be undone.")
    click(page, "Keep it going")
    page.go("#/fleet")
    page.shows("Waiting", "trial 0001 has been waiting for")

    label = ("label", "", {"tags": ["good", "new"], "notes": "look **again**"})
    assert asked(drives) == [label, ("set", "", {"max_trials": 7})]


def test_use_and_shares_are_on_the_pages_and_texts_on_the_server_stay_texts(
    driver: Any, redis_server: Any, redis_client: Any
):
    drives = AnsweringDriver(redis_client)
    begun = {"worker": "w@h", "host": "h", "devices": [MARKUP], "at": 3.0}
    drives.journal.record(AttemptStarted(trial=TrialId("0001"), attempt=1, **begun).encode())
    use = LiveUse(1, {MARKUP: DeviceUse(1.0, 31.2e9, 71.0)}, 3.75, 2e9, {MARKUP: 754.0}, {"sampled_s": 900.0})
    UsageBoard(redis_client).write((NAME, "w@h"), {"0001": use})
    demand = Demand(experiment=busy_as(NAME), queues=[MARKUP], wanted=7, weight=2.5)
    Demands(redis_client, patience_s=5.0).exchange(NAME, demand)
    redis_client.hset(QUOTAS, mapping={MARKUP: "12", "steered*": "12"})
    try:
        with serving(driver, Places([], redis_server.url, broker_alone=True)) as page:
            page.go(f"#/e/{NAME}/0001")
            page.shows("Usage", f"attempt 1 has device {MARKUP} and has left it idle for 12 min 34 s")
            page.shows(f"device {MARKUP}: 1 %, 31.2 GB, 71 W · 3.8 CPUs, 2.0 GB of memory", "sampled for 15 min")
            check_text_alone(page)
            page.go("#/fleet")
            page.shows("Running now", "idle for 12 min 34 s, 1 %, 31.2 GB")
            page.shows("Shares", "steered", "2.5", "Quotas", "0 of 12", "steered*")
            check_text_alone(page)
            assert page.complaints() == []
    finally:
        drives.end()


def click(browser: Browser, name: str, kind: str = "button") -> None:
    from selenium.common.exceptions import StaleElementReferenceException

    def is_clicked() -> bool:
        # The page may draw it again before the click.
        with contextlib.suppress(StaleElementReferenceException):
            for found in browser.driver.find_elements("xpath", f"//{kind}[.='{name}']")[-1:]:
                found.click()
                return True
        return False

    eventually(is_clicked)


def test_a_report_is_one_small_file_in_which_texts_of_trials_stay_texts(opened: Browser, home: Path, tmp_path: Path):
    file = tmp_path / "report.html"
    done = CliRunner().invoke(group, ["ui", str(home / "hostile"), "--export", str(file)], catch_exceptions=False)

    assert file.stat().st_size <= 1.5e6
    opened.driver.get(f"file://{file}")

    kinds = (
        "return [...document.querySelectorAll('.chart')].filter((each) => each.querySelector('.trace, .bars')).length"
    )
    assert done.stdout.startswith(f"{file}: hostile · ")
    # It has too few trials for importances, and no scheduler.
    eventually(lambda: opened.run(kinds) == 5, PAGE_S)
    opened.shows("hostile", "5 trials", f"lr={MARKUP}"[:20])
    check_text_alone(opened)
    assert opened.complaints() == []


#: The views of an experiment, and the others.
VIEWS: Final = {
    "list": ("#/", "growing"),
    "overview": ("#/e/mine", "Best trials"),
    "trials": ("#/e/mine?tab=trials", "All 30"),
    "parameters": ("#/e/mine?tab=parameters", "Compare loss at"),
    "schedule": ("#/e/mine?tab=schedule", "Timeline"),
    "log": ("#/e/mine?tab=log", "rung 1"),
    "trial": ("#/e/mine/0008", "Metrics at its best"),
    "compared trials": ("#/trials/mine/0008/0030", "Side by side"),
    "compared experiments": ("#/compare/mine/hostile", "Side by side"),
    "fleet": ("#/fleet", "Workers"),
    "missing": ("#/e/nonsense", "There is no experiment"),
}
#: Each view is checked on these screens, one after the other. Of all rules, only contrast depends on the colour scheme.
SCREENS: Final = (
    ("light", 1400, 900, "{}"),
    ("dark", 1400, 900, '{runOnly: ["color-contrast"]}'),
    ("dark", 390, 844, "{}"),
)


def emulate(driver: Any, scheme: str, width: int, height: int) -> None:
    """Have the browser prefer a colour scheme, in a window of this size."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@pytest.fixture
def emulated(browser: Browser) -> Iterator[Browser]:
    """A browser with a checker of accessibility, for which other screens are emulated."""
    # The checker comes into the page by the driver, which the page's policy does not concern.
    browser.run(AXE)
    yield browser
    browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def violations(browser: Browser, options: str) -> list[str]:
    """Return the serious faults of accessibility on the page, as axe names them."""
    found = browser.driver.execute_async_script(f"axe.run(document, {options}).then(arguments[0])")
    return [
        f"{each['id']}: {node['html'][:200]} ({node['failureSummary'][:200]})"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_has_a_fault_of_accessibility_or_scrolls_sideways(emulated: Browser, view: str):
    emulated.expected = "status of 404"
    address, text = VIEWS[view]
    for scheme, width, height, options in SCREENS:
        emulate(emulated.driver, scheme, width, height)
        emulated.go(address)
        emulated.shows(text)
        assert violations(emulated, options) == [], (scheme, width)
        wide = emulated.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, (scheme, width)
