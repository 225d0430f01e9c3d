"""The page in a real browser: what it shows, that it is live, and that nothing a trial writes is more than text."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from book import ASHA, Book
from click.testing import CliRunner
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from test_client import NAME, AnsweringDriver

from mqtune.cli import group, ui
from mqtune.cli.place import Place
from mqtune.cli.ui.access import Access
from mqtune.cli.ui.app import Page
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.server import server_of
from mqtune.core.events import AttemptStarted, Labelled, busy_as
from mqtune.core.keys import QUOTAS
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.core.usage import DeviceUse, LiveUse
from mqtune.driver import BundleFolder
from mqtune.journal import JOURNAL_FILE, JournalFile
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand
from mqtune.services.usage.board import UsageBoard
from mqtune.testing import waiting
from mqtune.trainable import Bundle, File

CHROMIUM: Final = shutil.which("chromium")
DRIVER: Final = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with its chromedriver")

FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--window-size=1300,1400"),
)
#: How long a page may take on a busy machine.
PAGE_S: Final = 60.0
#: What a trial may choose, as whoever wants to run a script on the page would.
MARKUP: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
#: What a driver may bring.
HOSTILE: Final = Bundle.of({MARKUP: File(f"# source\n{MARKUP}".encode())})


def eventually(condition: Callable[[], object], timeout_s: float = PAGE_S) -> object:
    """Wait until something holds, for as long as a page may take."""
    return waiting.eventually(condition, timeout_s)


class Browser:
    """A browser that has a page open."""

    def __init__(self, driver: Any, url: str, token: str) -> None:
        self.driver = driver
        self.url = url
        self.token = token
        #: What a test has the server answer, of which the browser tells too.
        self.expected = "\0"
        self.open()

    def open(self) -> None:
        """Open the URL that the command prints."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#token={self.token}")
        # Whoever goes on before the page has taken it has no token.
        eventually(lambda: "token" not in self.run("return location.hash"))

    def find(self, found: str) -> Any:
        """An element, by its CSS selector, or by an XPath that begins with two slashes."""
        return self.driver.find_element("xpath" if found.startswith("//") else "css selector", found)

    def draws(self, *kinds: str, says: str = "") -> None:
        """Wait until the cards of these kinds have pictures, with a note that begins so."""
        for kind in kinds:
            card = f"document.querySelector('[data-kind={kind}]')"
            self.run(f"{card}.scrollIntoView()")
            eventually(lambda card=card: self.run(f"return {card}.querySelectorAll('.trace, .bars').length"))
            assert self.run(f"return {card}.querySelector('.note')?.innerText ?? ''").startswith(says), kind

    def go(self, where: str) -> None:
        self.run(f"location.hash = {where!r}")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    @property
    def text(self) -> str:
        found: str = self.run("return document.body.innerText")
        return found

    def shows(self, *texts: str) -> None:
        """Wait until all of these are on the page at once."""
        missing = [*texts]

        def is_shown() -> bool:
            shown = self.text
            missing[:] = [text for text in texts if text not in shown]
            return not missing

        with contextlib.suppress(AssertionError):
            eventually(is_shown, PAGE_S)
        assert missing == [], self.text

    def complaints(self, *expected: str) -> list[str]:
        """What the browser has refused or failed to do since the last call."""
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
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield found
    found.quit()


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


def test_an_experiment_has_its_pictures_and_its_trials(browser: Browser):
    browser.go("#/e/mine")

    browser.shows("30\ntrials", "early stopped", "Trials (30)", "0030")
    kinds = ("history", "curves", "parallel", "slices", "importances", "rungs", "timeline")
    browser.draws(*kinds, says="30 trials (10 completed, 20")
    # It has neither population-based training nor several metrics.
    for kind in ("lineage", "pareto"):
        eventually(lambda kind=kind: browser.run(f"return document.querySelector('[data-kind={kind}]').hidden"))


def test_the_list_is_searched_sorted_and_compared(browser: Browser):
    browser.go("#/?sort=name")
    eventually(lambda: rows(browser) == ["growing", "hostile", "mine"])
    browser.find("//th/button[starts-with(., 'progress')]").click()
    eventually(lambda: "sort=progress" in browser.run("return location.hash"))
    browser.find("input[type=search]").send_keys("MIN")
    browser.shows("Experiments (1 of 3)")
    browser.find("[aria-label='select mine']").click()
    browser.find("input[type=search]").send_keys(3 * Keys.BACKSPACE)
    browser.shows("Experiments (3)", "1 selected")
    browser.find("[aria-label='select hostile']").click()
    click(browser, "compare")

    browser.shows("Side by side", "best config: width", "5 of 5")
    browser.draws("runs", "bests", "parameters", says="mine: 30 trials")
    check_text_alone(browser)


def test_trials_are_filtered_sorted_and_shown_by_the_columns_that_are_chosen(browser: Browser):
    browser.expected = "status of 404"
    browser.go("#/e/mine")
    browser.shows("Trials (30)", "width")

    browser.find("input[type=search]").send_keys("lr<0.35")
    browser.shows("Trials (3)")
    browser.find("//th/button[.='width']").click()
    eventually(lambda: rows(browser) == ["0001", "0002", "0003"])
    browser.find("//th/button[starts-with(., 'width')]").click()
    eventually(lambda: rows(browser) == ["0003", "0002", "0001"])
    click(browser, "columns", "summary")
    browser.find("//label[contains(., 'width')]/input").click()
    eventually(lambda: not browser.driver.find_elements("xpath", "//th/button[starts-with(., 'width')]"))
    # It is remembered.
    browser.go("#/")
    browser.shows("growing")
    browser.go("#/e/mine")
    browser.shows("Trials (30)", "worker")
    assert not browser.driver.find_elements("xpath", "//th/button[starts-with(., 'width')]")
    browser.run("localStorage.clear()")
    browser.find("input[type=search]").send_keys("depth=1")
    browser.shows("no trial has 'depth'")


def test_selected_trials_stand_side_by_side_and_go_into_a_file(browser: Browser):
    browser.go("#/e/mine")
    browser.shows("Trials (30)")
    for trial in ("0030", "0028"):
        browser.find(f"[aria-label='select trial {trial}']").click()
    browser.shows("2 selected")
    # Nothing is written to a disk here: what would be is kept.
    browser.run(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.written = text; }); return '#'; }"
    )
    click(browser, "export")
    browser.shows("2 trials written to mine.csv")
    assert "0030" in str(eventually(lambda: browser.run("return window.written")))
    click(browser, "compare")

    browser.shows("Side by side", "2.8")
    differ = "return [...document.querySelectorAll('tr.differs td:first-child')].map((each) => each.innerText)"
    assert {"lr", "width", "best loss"} <= set(browser.run(differ))


def test_a_chart_has_its_choices_which_a_link_brings_back(browser: Browser):
    curves = "document.querySelector('[data-kind=curves]')"
    lines = f"return {curves}.querySelectorAll('.legend .key[aria-pressed=true]').length"
    scale = f"return {curves}?.querySelector('.plot')._fullLayout?.yaxis.type"

    browser.go('#/e/mine?chart=curves&y=log&smooth=0.5&hidden=["early stopped"]&where=status!%3Dfailed')

    eventually(lambda: browser.run(scale) == "log")
    assert browser.run(f"return {curves}.querySelector('.key[aria-pressed=false]').innerText") == "early stopped"
    before = browser.run(lines)
    browser.run(f"{curves}.querySelector('.key[aria-pressed=false]').click()")
    eventually(lambda: browser.run(lines) == before + 1)
    change = f"const axis = {curves}.querySelector('[aria-label=\"%s axis\"]'); axis.value = '%s'; axis.dispatchEvent(new Event('change'))"
    browser.run(change % ("vertical", "linear"))
    eventually(lambda: browser.run(scale) == "linear")
    browser.run(change % ("horizontal", "time"))
    eventually(lambda: "since the first report" in browser.run(f"return {curves}.innerText"))
    browser.run(f"[...{curves}.querySelectorAll('.menu button')].find((each) => each.textContent === 'link').click()")
    eventually(lambda: "x=time" in browser.run("return location.hash"))
    assert "smooth=0.5" in browser.run("return location.hash")
    # A point says which trial it is, and its config.
    point = "{text: '0030', x: 1, y: 2, data: {name: 'completed'}}"
    hover = f"{{points: [{point}], event: {{clientX: 9, clientY: 9}}}}"
    browser.run(f"{curves}.querySelector('.plot').emit('plotly_hover', {hover})")
    browser.shows("trial 0030 · completed", "lr = 3")


def rows(browser: Browser) -> Any:
    return browser.run("return [...document.querySelectorAll('tbody tr[data-id]')].map((row) => row.dataset.id)")


def test_a_trial_has_its_config_beside_the_best_its_curves_and_its_attempts(browser: Browser):
    browser.go("#/e/mine")
    browser.shows("Trials (30)")
    browser.go("#/e/mine/0008")

    browser.shows("mine / trial 0008", "best: trial 0026", "w1@host", "rung 1", "9 reports")
    # Metrics are in a few digits, and in full under the mouse.
    assert browser.run("return document.querySelector('td[title^=\"0.01388888\"]').innerText") == "0.01389"
    eventually(lambda: browser.run("return document.querySelectorAll('[data-kind=trial] .trace').length"))
    browser.run("history.back()")
    browser.shows("Trials (30)")
    browser.go("#/e/mine/8")
    browser.shows("mine / trial 0008", "best: trial 0026", "9 reports")


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
        page.go("#/e/nonsense")

        page.shows("nonsense", "there is no experiment 'nonsense' here", "all experiments", "not there")
        assert page.text.count("there is no experiment") == 1
        assert "reconnecting" not in page.text
        assert "end now" not in page.text
        page.go("#/e/there")
        page.shows("Trials (1)", "end now")
        page.go("#/e/ended")
        page.shows("Trials (1)")
        eventually(lambda: "end now" not in page.text)
        page.go("#/e/100%")
        page.shows("100%", "there is no experiment '100%' here")
        assert page.complaints("status of 404") == []


def test_what_a_trial_writes_is_text(browser: Browser):
    browser.expected = "status of 404"
    browser.go("#/e/hostile")
    browser.shows("Trials (5)", MARKUP[:10])
    browser.draws("history", "parallel", "slices", "importances")
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
    # Nor is what stands in the address more than a name.
    browser.go(f"#/e/{quote(MARKUP, safe='')}")
    browser.shows(MARKUP, "there is no experiment")
    check_text_alone(browser)


def check_text_alone(browser: Browser) -> None:
    assert browser.run("return [window.hacked, document.querySelectorAll('img, main script').length]") == [None, 0]


def test_a_report_is_on_the_screen_at_once(browser: Browser, home: Path, books: dict[str, Book]):
    book, file = books["growing"], JournalFile(home / "growing" / JOURNAL_FILE)
    with contextlib.closing(file):
        file.begin(book.entries)
        browser.go("#/e/growing")
        browser.shows("Trials (30)", "0029")
        written = len(book.entries)
        book.stage("0031", {"lr": 0.1, "width": 3})
        file.append(book.entries[written:])
        browser.shows("31\ntrials")
        took = (seconds_until_shown(browser, book, file, 1e-4 / number) for number in range(1, 20))
        # Of several, as the machine may be busy; on one that is not, each takes a tenth of that.
        assert any(seconds < 1 for seconds in took)


def test_no_link_of_the_page_is_absolute_so_that_a_proxy_may_have_it_below_any_path():
    absolute = re.compile(r"""(src|href)=["']/|(fetch|import|EventSource)\(["'`]/|from ["']/""")
    files = [file for file in Path(ui.__file__).parent.glob("assets/*") if file.suffix != ".svg"]
    assert files
    assert [file.name for file in files if absolute.search(file.read_text())] == []


def seconds_until_shown(browser: Browser, book: Book, file: JournalFile, value: float) -> float:
    """Report a new best value, and return how long it took until it stood on the page."""
    browser.run(
        "window.shown = 0; const look = new MutationObserver(() => {"
        f"if (!window.shown && document.querySelector('.tile.best b').textContent === '{value:.4g}') window.shown = Date.now();"
        "}); look.observe(document.querySelector('.tiles'), {childList: true, subtree: true});"
    )
    # So that it is not the end of a pause after what came before.
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
    browser.shows("open the URL that mqtune ui has printed")

    browser.find("input").send_keys("wrong\n")

    browser.shows("this is not the token")
    # What was typed before is still there.
    browser.find("input").clear()
    browser.find("input").send_keys(browser.token + "\n")
    browser.shows("mine", "hostile", "0.004274 loss", "30 of 30")
    assert browser.run("return document.cookie") == ""


def test_a_button_asks_the_driver_and_shows_what_it_answers(driver: Any, redis_server: Any, redis_client: Any):
    drives = AnsweringDriver(redis_client)
    places = Places([], redis_server.url, broker_alone=True)
    try:
        with serving(driver, places, steers=True) as page:
            page.shows("steered")
            page.go("#/e/steered/0001")
            page.shows("steered / trial 0001", "pause", "no worker is connected · start one: mqtune worker")
            click(page, "pause")
            page.shows("trial 0001 is paused")
            click(page, "fail")
            page.shows("fail trial 0001?", "This can't be undone.")
            click(page, "fail trial 0001")
            page.shows("can't fail trial 0001", "trial 0001 has ended already")
            page.go("#/e/steered")
            page.shows("Trials (2)", "trial 0001 has been waiting for", "waiting for a slot")
            # Nothing is offered before something is selected.
            assert "pause 2" not in page.text
            page.find("[aria-label^='select all']").click()
            page.shows("2 selected", "pause 2")
            click(page, "pause 2")
            page.shows("pause 2 trials of steered?", "0001, 0002", "Resume undoes this.")
            click(page, "cancel")
            page.find("[aria-label='select trial 0001']").click()
            page.shows("1 selected", "pause 1")
            click(page, "pause 1")
            click(page, "pause 1 trial")
            page.shows("pause: done for 1 of 1 trials")
            click(page, "add tags or notes")
            page.find("[aria-label=tags]").send_keys("good, new")
            page.find("[aria-label=notes]").send_keys("look again")
            click(page, "save")
            eventually(lambda: drives.seen[-1].action == "label")
            eventually(lambda: "add tags or notes" not in page.text and "look again" in page.text)
            page.find("[aria-label='max trials']").send_keys("7")
            click(page, "set")
            page.shows("steered has new limits: max_trials=7")
            click(page, "end now")
            page.shows("end now steered?", "those that run are stopped")
            click(page, "cancel")
            page.go("#/fleet")
            page.shows("What waits", "trial 0001 has been waiting for")
            assert page.complaints() == []
    finally:
        drives.end()

    asked = [(each.action, each.trial, each.arguments) for each in drives.seen]
    why = {"reason": "by hand, on the live page"}
    trials = [("pause", "0001", why), ("fail", "0001", why), ("pause", "0002", why)]
    label = ("label", "", {"tags": ["good", "new"], "notes": "look again"})
    assert asked == [*trials, label, ("set", "", {"max_trials": 7})]


def test_use_and_shares_are_on_the_pages_and_what_others_write_to_the_server_is_text(
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
            page.shows("Usage", f"attempt 1 holds device {MARKUP} and leaves it idle for 12 min 34 s")
            page.shows(f"device {MARKUP}: 1 %, 31.2 GB, 71 W · 3.8 CPUs, 2.0 GB of memory", "sampled for 15 min")
            check_text_alone(page)
            page.go("#/fleet")
            page.shows("What runs where", "idle for 12 min 34 s, 1 %, 31.2 GB")
            page.shows("Shares", "steered", "2.5", "Quotas", "0 of 12", "steered*")
            check_text_alone(page)
            assert page.complaints() == []
    finally:
        drives.end()


def click(browser: Browser, name: str, kind: str = "button") -> None:
    def is_clicked() -> bool:
        # The page may draw it again between the look and the click.
        with contextlib.suppress(StaleElementReferenceException):
            for found in browser.driver.find_elements("xpath", f"//{kind}[.='{name}']")[:1]:
                found.click()
                return True
        return False

    eventually(is_clicked)


def test_a_report_is_one_file_in_which_what_a_trial_wrote_is_text(opened: Browser, home: Path, tmp_path: Path):
    file = tmp_path / "report.html"
    done = CliRunner().invoke(group, ["ui", str(home / "hostile"), "--export", str(file)], catch_exceptions=False)

    opened.driver.get(f"file://{file}")

    kinds = (
        "return [...document.querySelectorAll('.plot')].filter((each) => each.querySelector('.trace, .bars')).length"
    )
    assert done.stdout.startswith(f"{file}: hostile · ")
    eventually(lambda: opened.run(kinds) == 6, PAGE_S)
    opened.shows("hostile", "Trials (5)", f"lr={MARKUP}"[:20])
    check_text_alone(opened)
    assert opened.complaints() == []
