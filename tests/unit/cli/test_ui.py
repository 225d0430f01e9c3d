"""The page's server: access, answers, and the following of journals, without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from book import ASHA, Book
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune import Results
from mqtune.checkpoints import DirectoryStore
from mqtune.cli import Access, Feed, Feeds, Page, Place, Places, group, server_of
from mqtune.cli.ui import views
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.events import CheckpointSaved, Cursor, Event, RequestAnswered, Requested
from mqtune.core.machine import ARCHIVED
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd, Report, TrialId, checkpoint_id
from mqtune.core.version import install_command
from mqtune.driver import BundleFolder
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile
from mqtune.results import FolderSource, PlottedCurve, Readable, RecordedReport, saved_events
from mqtune.trainable import Bundle, File

#: How long an answer may take: the first picture of a kind imports what draws it, on a machine that runs other tests.
ANSWER_S = 60
#: Begins the names of the test's own threads.
POOL = "ThreadPoolExecutor"


class Served:
    """A page's server in a thread of this process, and requests to it."""

    def __init__(self, places: Places, *, steers: bool = False, timing: Timing = Timing()) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.access = Access("127.0.0.1", self.port, ["tune.example"])
        self.places = places
        self.page = Page(places, self.access, steers=steers, timing=timing)
        self.server = server_of(self.page)
        self.thread = threading.Thread(target=self.server.run, args=([listening],))
        self.thread.start()
        self.cookie = ""
        eventually(lambda: self.server.started)

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, Any, Any]:
        """The status, the headers and the body of an answer."""
        sent = {"Cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, sent)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return answer.status, answer.headers, _plain(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, _plain(error.read())

    def login(self) -> None:
        _, headers, _ = self.ask("/api/login", {"token": self.access.token})
        self.cookie = headers["Set-Cookie"].partition(";")[0]

    def close(self) -> None:
        self.server.end()
        self.thread.join(20)
        assert not self.thread.is_alive()


def _plain(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    except ValueError:
        return body


def written(home: Path, name: str = "mine", **options: Any) -> Book:
    book = Book(home / name, **options)
    for number in range(1, 6):
        book.run(f"{number:04}", 1.0, 1 / number, config={"lr": number / 10})
    book.save()
    return book


@pytest.fixture(scope="module")
def everybodys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that only ask."""
    home = tmp_path_factory.mktemp("ui")
    places = [Place(book.folder.name, book.folder, None) for book in (written(home), coded(home))]
    with contextlib.closing(Served(Places(places, None, broker_alone=False))) as found:
        yield found


@pytest.fixture
def own(mqtune_home: Path) -> Iterator[Served]:
    """Serve a test's own home to somebody who is logged in and may steer."""
    with contextlib.closing(Served(Places([], None, broker_alone=False), steers=True)) as served:
        served.login()
        yield served


@pytest.fixture
def served(everybodys: Served) -> Served:
    """It, before anybody has a cookie."""
    everybodys.cookie = ""
    return everybodys


BUNDLE = Bundle.of({"train.py": File(b"print('<b>')\n"), "data.bin": File(b"\0\1"), "long.py": File(b"#" * 300_000)})


def coded(home: Path) -> Book:
    """Write an experiment whose attempts ran code of the driver, of the worker and lost code."""
    book = Book(home / "coded", code_files={"train.py": "0a1b"}, max_failures=5)
    environment = {
        "python": "3.12.1",
        "mqtune": "1.0",
        "packages": {"numpy": "2.1"},
        "code": "c0de",
        "differs": ["a.py"],
    }
    for more in ({"bundle": BUNDLE.digest}, {"packages": 7}, {"bundle": 64 * "f"}):
        book.stage("0001", start=False)
        book.start("0001", environment={**environment, **more})
        book.end("0001", AttemptEnd.FAILED)
    book.save()
    BundleFolder(book.folder).keep(BUNDLE)
    return book


def test_without_the_token_there_is_a_page_and_nothing_on_it(served: Served):
    assert served.ask("/")[0] == 200
    for path in ("/api/me", "/api/experiments", "/api/trials?name=mine", "/api/events?name=mine", "/api/fleet"):
        assert served.ask(path)[0] == 401
    assert served.ask("/api/login", {"token": "x"})[0] == 401
    assert served.ask("/api/login", ["x"])[0] == 400


def test_the_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_has(served: Served):
    status, headers, _ = served.ask("/api/login", {"token": served.access.token})

    assert status == 204
    assert headers["Set-Cookie"] == f"mqtune_{served.port}={served.access.token}; HttpOnly; Path=/; SameSite=strict"
    served.login()
    assert served.ask("/api/experiments")[2]["experiments"][0]["name"] == "mine"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("tune.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:8265", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_a_name_that_is_not_this_machines_is_refused(served: Served, host: str, status: int):
    served.login()

    assert served.ask("/api/me", Host=host)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Origin": "http://localhost:1234"}, 204),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
    ],
)
def test_what_another_page_sends_is_refused(served: Served, headers: dict[str, str], status: int):
    found, _, body = served.ask("/api/login", {"token": served.access.token}, **headers)

    assert found == status
    assert found != 403 or "--allow-host" in body["error"]


@pytest.mark.parametrize("path", ["/", "/api/me", "/assets/page.js", "/nowhere"])
def test_every_answer_says_what_a_browser_may_do_with_it(served: Served, path: str):
    headers = served.ask(path)[1]

    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_but_the_pages_files_is_served(served: Served):
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/api/trials?name=../mine", "/api/trials?name="):
        served.login()
        assert served.ask(path)[0] == 404


def test_chosen_trials_are_written_as_export_writes_them(served: Served):
    served.login()

    found = served.ask("/api/export", {"name": "mine", "trials": ["0003", "9"]})[2]

    head, row = found["text"].splitlines()
    assert found["file"] == "mine.csv"
    assert dict(zip(head.split(","), row.split(","), strict=True))["config.lr"] == "0.3"
    assert served.ask("/api/export", {"name": "yours"})[0] == 404


def test_an_attempt_has_its_versions_and_its_code_as_text(served: Served):
    served.login()

    def code(attempt: int, file: str = "") -> tuple[int, Any]:
        status, _, body = served.ask(f"/api/code?name=coded&trial=0001&attempt={attempt}&file={file}")
        return status, body

    first, second, _ = served.ask("/api/trial?name=coded&trial=0001")[2]["ran_with"]
    plain = {"attempt": 1, "python": "3.12.1", "mqtune": "1.0", "platform": "", "code": "c0de", "bundle": BUNDLE.digest}
    assert first == {**plain, "packages": [["numpy", "2.1"]], "differs": "a.py"}
    assert (second["bundle"], second["packages"]) == ("", [])
    files = [["data.bin", "2 bytes"], ["long.py", "300,000 bytes"], ["train.py", "13 bytes"]]
    assert code(1) == (200, {"bundle": BUNDLE.digest, "files": files, "total": 3})
    assert code(1, "train.py")[1]["text"] == "print('<b>')\n"
    assert code(1, "data.bin")[1]["text"] == "2 bytes that are not text"
    assert code(1, "long.py")[1]["text"].endswith("#\n… and 37,856 bytes more")
    assert code(2) == (200, {"bundle": "", "files": [["train.py", "fingerprint 0a1b"]], "total": 1})
    assert code(3)[0] == code(4)[0] == code(1, "../journal")[0] == 404


def test_a_checkpoint_has_its_files_with_their_sizes_if_its_store_is_on_this_machine(
    own: Served, mqtune_home: Path, tmp_path: Path
):
    (tmp_path / "state" / "net").mkdir(parents=True)
    (tmp_path / "state" / "net" / "weights.bin").write_bytes(bytes(1_234))
    (tmp_path / "state" / "epoch").write_bytes(b"7")
    store = DirectoryStore(tmp_path / "store")
    store.create()
    saved, lost, kept = (checkpoint_id("0001", 1, number, in_memory=number == 3) for number in (1, 2, 3))
    store.save(saved, tmp_path / "state", {})
    for name, url in (("here", store.url), ("there", "s3://bucket/there")):
        book = Book(mqtune_home / name, store=url)
        book.stage("0001")
        for each in (saved, lost, kept):
            event = CheckpointSaved(trial=TrialId("0001"), attempt=1, checkpoint=each, at=book.now)
            book.cursor = Cursor(book.write(event.encode()))
        book.save()

    def files(name: str, id_: str) -> tuple[int, Any]:
        status, _, body = own.ask(f"/api/checkpoint?name={name}&trial=0001&id={id_}")
        return status, body.get("error", body)

    listed = [["epoch", "1 bytes"], ["net/weights.bin", "1,234 bytes"]]
    assert files("here", saved) == (200, {"files": listed, "total": 2, "size": "1,235 bytes"})
    assert "it was deleted" in files("here", lost)[1]
    assert files("here", kept) == (404, f"checkpoint {kept} is a dict in Redis, so it has no files")
    assert files("here", "../store") == (404, "trial 0001 has no checkpoint '../store'")
    assert files("there", saved) == (404, f"the files of checkpoint {saved} are not on this machine")


def test_plotly_is_kept_by_browsers_as_its_address_has_its_version(served: Served):
    served.login()
    address = served.ask("/api/me")[2]["plotly"]

    status, headers, _ = served.ask(f"/{address}")

    assert (status, headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
    assert re.fullmatch(r"plotly-basic-[\d.]+\.min\.js", address)


def figured(home: Path) -> Book:
    """Return an experiment whose trial 0003 is the best, with early stops and three failures."""
    stop = mqtune.TimeLimit(60) | mqtune.TargetReached(0) | mqtune.TimeLimit(5, "driver_time") | mqtune.TimeLimit(90)
    book = Book(home / "figured", scheduler=ASHA, max_failures=0, stop=stop.describe())
    for number in range(1, 13):
        id_ = f"{number:04}"
        book.stage(id_, {"lr": number / 10})
        epochs = range(1, 10 if number == 3 else 2)
        book.report(
            id_, *({"loss": (1 if number == 3 else 2) / epoch, "training_iteration": epoch} for epoch in epochs)
        )
        if number in (4, 5, 6):
            error = "ValueError: lr" if number == 4 else "RuntimeError: CUDA out of memory"
            book.end(id_, AttemptEnd.FAILED, error=f"Traceback\n{error}", error_type=error.partition(":")[0])
        elif number != 3:
            book.decide(id_)
            book.end(id_, AttemptEnd.STOPPED)
        else:
            book.end(id_)
    asked = {"trial": "", "by": "ana@host", "at": book.now}
    for id_, most, is_done in (("a", 50, True), ("b", 70, False)):
        arguments = {"max_trials": most, "max_concurrent": 4}
        book.cursor = Cursor(book.write(Requested(id=id_, action="set", arguments=arguments, **asked).encode()))
        answer = RequestAnswered(
            id=id_, done=is_done, reason="" if is_done else "too many", trial="", at=book.now, cursor=book.cursor
        )
        book.write(answer.encode())
    book.save()
    return book


def test_the_figures_of_an_experiment_have_its_savings_speed_and_commonest_error(own: Served, mqtune_home: Path):
    figured(mqtune_home)
    found = own.ask("/api/facts?name=figured")[2]
    with listening(own, "name=figured") as messages:
        summary = next(messages)[1]["summary"]

    assert (found["used"], found["saved"]) == (17, 64)
    assert (found["error"], found["error_count"]) == ("RuntimeError: CUDA out of memory", 2)
    # The others ended after trial 0003 had found the best value.
    assert found["since"] == 10
    assert 10 < found["per_minute"] < 20
    assert found["time_limit_at"] == summary["created_at"] + 60
    assert (summary["scheduler"], summary["range"], summary["searcher"]) == ("ASHA", "η 3, iterations 1 → 9", "random")
    assert (summary["best"]["trial"], summary["best"]["time"], summary["unit"]) == ("0003", 9, "iteration")
    # The refused request changed nothing.
    assert (summary["limits"], summary["planned"]) == ({"max_trials": 50, "max_concurrent": 4}, 50)


def test_the_log_has_sentences_newest_first_by_kind(own: Served, mqtune_home: Path):
    figured(mqtune_home)

    def texts(kind: str) -> list[str]:
        lines = own.ask(f"/api/history?name=figured&kind={kind}")[2]["lines"]
        return [" ".join(filter(None, (line["trial"], line["text"]))) for line in lines]

    people, failures, stops, drivers = (texts(kind) for kind in ("people", "failures", "stops", "drivers"))
    every = texts("")

    assert people == [
        "the driver refused to set: too many",
        "ana@host asked to set max_trials=70 max_concurrent=4",
        "ana@host asked to set max_trials=50 max_concurrent=4",
    ]
    assert failures == [
        "0006 failed: RuntimeError: CUDA out of memory",
        "0005 failed: RuntimeError: CUDA out of memory",
        "0004 failed: ValueError: lr",
    ]
    assert stops[0] == "0012 stopped early after report 1 by the scheduler: rung 1"
    assert drivers == ["created"]
    assert every[0] == people[0]
    assert {"0003 was queued", "0003 started on w1@host", "0003 completed"} <= set(every)


def test_the_log_has_the_newest_of_many_lines_and_their_number(own: Served, mqtune_home: Path):
    book = Book(mqtune_home / "long")
    for number in range(1, 401):
        book.run(f"{number:04}", 1.0)
    book.decide("0400")
    book.save()

    every, stops = (own.ask(f"/api/history?name=long&kind={kind}")[2] for kind in ("", "stops"))

    # Each trial is queued, starts and completes.
    assert (every["total"], stops["total"]) == (1_202, 1)
    assert [line["trial"] for line in every["lines"][:4]] == ["0400"] * 4
    assert len(every["lines"]) == 500
    assert own.ask("/api/history?name=long&kind=x")[2] == {"lines": [], "total": 0}


def test_a_missing_name_is_answered_with_the_nearest_one(served: Served):
    served.login()

    assert served.ask("/api/near?name=minn")[2] == {"name": "mine"}
    assert served.ask("/api/near?name=zzzz")[2] == {"name": ""}


@pytest.fixture
def wide(own: Served, mqtune_home: Path) -> Served:
    """Serve an experiment with 14 parameters, one named like a column and one a large number."""
    book = Book(mqtune_home / "wide", scheduler=ASHA)
    for number in range(1, 4):
        parameters = {f"p{place:02}": number * place for place in range(1, 13)}
        book.stage(f"{number:04}", {**parameters, "status": number, "large": 2**60 + number})
        book.report(f"{number:04}", {"loss": 1.0 / number, "training_iteration": 9})
        book.end(f"{number:04}")
    book.save()
    return own


def test_the_first_parameters_are_shown_and_large_numbers_keep_their_digits(wide: Served):
    found = wide.ask("/api/trials?name=wide")[2]

    parameters = [column for column in found["columns"] if column["kind"] == "parameter"]
    assert (len(parameters), sum(column["shown"] for column in parameters)) == (14, 12)
    # A browser would round it.
    assert found["rows"][0]["cells"]["config.large"] == str(2**60 + 3)


def test_parallel_axes_have_names_for_conditions_and_the_asked_order(wide: Served):
    found = wide.ask("/api/picture?name=wide&kind=parallel&order=status&order=p12")[2]

    keys = [scale["key"] for scale in found["scales"]]
    # "status" alone would be the trial's own.
    assert keys[:2] == ["config.status", "p12"]


def test_only_experiments_that_were_named_are_shown(mqtune_home: Path, tmp_path: Path):
    written(mqtune_home, "other")
    written(tmp_path, "moved")
    places = Places([Place("moved", tmp_path / "moved", None)], None, broker_alone=False)
    with contextlib.closing(Served(places)) as served:
        served.login()

        assert [each["name"] for each in served.ask("/api/experiments")[2]["experiments"]] == ["moved"]
        assert served.ask("/api/trials?name=moved")[0] == 200
        assert served.ask("/api/trials?name=other")[0] == 404


def test_a_page_that_only_reads_steers_nothing(served: Served):
    served.login()
    wanted = {"name": "mine", "verb": "stop", "trial": "0001"}

    status, _, body = served.ask("/api/steer", wanted, X_Mqtune=served.access.csrf)

    assert (status, body["error"]) == (403, "this page may not change experiments; start it with --steer")


def test_only_the_page_itself_steers_and_says_why_it_can_not(mqtune_home: Path):
    written(mqtune_home)
    with contextlib.closing(Served(Places([], None, broker_alone=False), steers=True)) as served:
        wanted = {"name": "mine", "verb": "stop", "trial": "0001"}
        assert served.ask("/api/steer", wanted, X_Mqtune=served.access.csrf)[0] == 401
        served.login()
        csrf = served.ask("/api/me")[2]["csrf"]
        assert served.ask("/api/steer", wanted)[0] == 403
        assert served.ask("/api/steer", wanted, X_Mqtune="x")[0] == 403
        assert served.ask("/api/steer", wanted, X_Mqtune=csrf, Origin="http://evil.example")[0] == 403
        assert served.ask(f"/api/steer?x-mqtune={csrf}")[0] == 405
        status, _, body = served.ask("/api/steer", wanted, X_Mqtune=csrf)
        nowhere = served.ask("/api/steer", {**wanted, "name": "yours"}, X_Mqtune=csrf)

    assert (status, "it has no driver to control" in body["error"]) == (404, True)
    assert nowhere[0] == 404


def test_labels_are_given_on_the_page_as_on_the_command_line(own: Served, mqtune_home: Path):
    written(mqtune_home)
    (mqtune_home / "mine" / ARCHIVED).touch()
    label = {"name": "mine", "verb": "label", "trial": "0002", "tags": ["good"], "notes": "look\nagain"}
    assert own.ask("/api/steer", label, X_Mqtune=own.access.csrf)[2]["done"]
    removed = {"name": "mine", "verb": "label", "tags": ["a", "b"], "untag": [], "notes": None}
    own.ask("/api/steer", removed, X_Mqtune=own.access.csrf)
    own.ask("/api/steer", {**removed, "tags": [], "untag": ["a"]}, X_Mqtune=own.access.csrf)
    status, _, body = own.ask("/api/steer", {**label, "tags": ["\n"]}, X_Mqtune=own.access.csrf)

    found = Results.load(mqtune_home / "mine").experiment
    labels = found.trials[TrialId("0002")].labels
    assert (labels.tags, labels.notes, found.labels.tags) == (("good",), "look\nagain", ("b",))
    assert (status, "is not a tag" in body["error"]) == (404, True)


@contextlib.contextmanager
def listening(served: Served, query: str, last: str = "") -> Iterator[Iterator[tuple[str, Any]]]:
    headers = {"Cookie": served.cookie, **({"Last-Event-ID": last} if last else {})}
    request = urllib.request.Request(f"http://127.0.0.1:{served.port}/api/events?{query}", None, headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:

        def messages() -> Iterator[tuple[str, Any]]:
            id_ = ""
            for line in answer:
                if line.startswith(b"id: "):
                    id_ = line[4:].decode().strip()
                elif line.startswith(b"data: "):
                    yield id_, _plain(line[6:])

        yield messages()


def test_what_happens_is_told_with_the_id_of_the_entry_and_told_again_from_there(own: Served, mqtune_home: Path):
    book = written(mqtune_home)
    file = JournalFile(mqtune_home / "mine" / JOURNAL_FILE)
    file.begin(book.entries)
    with listening(own, "name=mine") as messages:
        first, begun = next(messages)
        before = len(book.entries)
        book.stage("0006", {"lr": 0.6})
        book.report("0006", {"loss": 0.01})
        began = time.monotonic()
        file.append(book.entries[before:])
        last, told = next(messages)
        took_s = time.monotonic() - began
    with listening(own, "name=mine", first) as messages:
        assert next(messages)[1]["rows"] == told["rows"]
    with listening(own, "name=mine", last) as messages:
        assert next(messages)[1]["rows"] == []
        # Nor does a stream keep the server from ending.
        began_to_end = time.monotonic()
        own.close()
        assert time.monotonic() - began_to_end < 8
    file.close()

    assert (first, last) == (book.entries[before - 1].id, book.entries[-1].id)
    assert begun["rows"] == []
    assert [row["id"] for row in told["rows"]] == ["0006"]
    assert told["summary"]["best"]["value"] == "0.01"
    # Nobody has asked again meanwhile; a tenth of that on a machine that has nothing else to do.
    assert took_s < 5


def test_an_experiment_that_nobody_looks_at_is_let_go(mqtune_home: Path):
    written(mqtune_home)
    quick = Timing(linger_s=0.1, feed_wait_s=0.05)
    with contextlib.closing(Served(Places([], None, broker_alone=False), timing=quick)) as served:
        served.login()
        with listening(served, "name=mine") as messages:
            next(messages)
            time.sleep(0.3)
            assert len(served.page.feeds) == 1
        eventually(lambda: len(served.page.feeds) == 0)


@pytest.fixture
def feed(mqtune_home: Path) -> Iterator[tuple[Book, JournalFile, Feed]]:
    book = written(mqtune_home, scheduler=ASHA)
    file = JournalFile(mqtune_home / "mine" / JOURNAL_FILE)
    file.begin(book.entries)
    found = Feed(Place("mine", mqtune_home / "mine", None), lambda _: False, timing=Timing(feed_state_s=0.3))
    yield book, file, found
    found.close()
    file.close()


def decide_late(book: Book) -> None:
    """Have a driver decide on the first of two reports while it has not seen the second."""
    book.stage("0006")
    book.report("0006", {"loss": 0.5})
    cursor, count = book.cursor, book.sequences["0006"]
    book.report("0006", {"loss": 0.001})
    book.cursor, book.sequences["0006"] = cursor, count
    book.decide("0006")
    book.end("0006", AttemptEnd.STOPPED)


def test_news_comes_while_all_is_folded_again_and_is_there_afterwards(
    feed: tuple[Book, JournalFile, Feed], mqtune_home: Path, monkeypatch: pytest.MonkeyPatch
):
    book, file, live = feed
    gate = threading.Event()

    def slowly(part: Readable) -> Iterator[Event | Report]:
        assert gate.wait(30)
        yield from saved_events(part)

    monkeypatch.setattr("mqtune.results.followed.saved_events", slowly)
    before = len(book.entries)
    decide_late(book)
    file.append(book.entries[before:])
    eventually(lambda: live.is_folding_again)
    before = len(book.entries)
    for number in range(7, 40):
        book.run(f"{number:04d}", 0.2, 0.1)
    file.append(book.entries[before:])

    eventually(lambda: TrialId("0039") in live.experiment.trials)
    assert live.experiment.trials[TrialId("0006")].reports == 2, "it is not folded again yet"
    gate.set()
    eventually(lambda: not live.is_folding_again)

    saved = Results.load(mqtune_home / "mine").experiment
    assert live.experiment.trials == saved.trials
    assert list(live.curves(live.results, "loss")[TrialId("0039")].value) == [0.2, 0.1]


def test_a_list_that_a_broker_cuts_short_says_so(monkeypatch: pytest.MonkeyPatch, mqtune_home: Path):
    def state() -> None:
        raise BrokerUnavailable("no Redis answers")

    # It goes away after the names of its experiments.
    cut = SimpleNamespace(place="there", experiments=lambda: [SimpleNamespace(state=state)])
    monkeypatch.setattr("mqtune.client.Client", lambda _: contextlib.nullcontext(cut))

    assert str(Places([], "redis://there", broker_alone=True).listed().problem) == "no Redis answers"


@pytest.mark.parametrize(
    "look",
    [
        lambda live: live.detail(TrialId("0006"))["accuracy"],
        lambda live: live.curves(live.results, "accuracy")[TrialId("0006")],
    ],
    ids=["of a trial", "of a metric"],
)
def test_what_is_reported_while_the_journal_is_read_is_not_lost_and_it_is_read_once(
    look: Callable[[Feed], PlottedCurve], feed: tuple[Book, JournalFile, Feed], monkeypatch: pytest.MonkeyPatch
):
    book, file, live = feed
    gate, reads, read = threading.Event(), [0], Results.reports

    def reports(results: Results, trial: str | None) -> Iterator[RecordedReport]:
        reads[0] += 1
        assert gate.wait(30)
        return read(results, trial)

    def report(accuracy: float) -> None:
        book.report("0006", {"loss": 1.0, "accuracy": accuracy})
        file.append(book.entries[-1:])
        eventually(lambda: live.last == book.entries[-1].id)

    monkeypatch.setattr(Results, "reports", reports)
    book.stage("0006")
    file.append(book.entries[-2:])
    report(0.5)
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(look, live), pool.submit(look, live)]
        eventually(lambda: reads[0])
        report(0.6)
        gate.set()

        assert [list(each.result(30).value) for each in made] == [[0.5, 0.6]] * 2
    report(0.7)
    eventually(lambda: list(look(live).value) == [0.5, 0.6, 0.7])
    assert reads == [1]


def test_a_journal_that_goes_is_a_problem_in_words(feed: tuple[Book, JournalFile, Feed]):
    _, file, live = feed

    file.path.unlink()

    eventually(lambda: live.problem)
    assert "can't be read" in live.problem


def test_the_length_of_an_outage_is_told(feed: tuple[Book, JournalFile, Feed], monkeypatch: pytest.MonkeyPatch):
    _, _, live = feed
    told: list[str] = []
    live.listeners.add(lambda: told.append(live.problem))

    def fail(_source: FolderSource, _timeout_s: float) -> list[Entry]:
        raise BrokerUnavailable("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(FolderSource, "read", fail)
        eventually(lambda: len({each for each in told if each.startswith("no news from Redis for ")}) > 1)
        assert views.summary(live)["problem"].endswith(" s: it is away")
        assert views.why(Places([], None, broker_alone=False), Feeds(lambda _: live.place), live)["text"] == ""
    eventually(lambda: live.problem == "")


def test_a_port_that_is_taken_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(group, ["ui", "--port", str(port)])

    assert re.fullmatch(rf"can't listen on 127\.0\.0\.1:{port}: .*; give another --port, or 0", str(done.exception))


def test_a_broker_that_is_not_there_is_told_before_anybody_looks():
    done = CliRunner().invoke(group, ["ui", "--broker", "redis://127.0.0.1:1/0"])

    assert "127.0.0.1:1" in str(done.exception)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqtune.cli.ui.find_spec", lambda name: None if name == "uvicorn" else name)

    assert str(CliRunner().invoke(group, ["ui"]).exception) == f"the page needs uvicorn: {install_command('ui')}"


def test_an_experiment_whose_store_hangs_holds_up_no_other_and_not_the_end_of_the_page(tmp_path: Path) -> None:
    answers = threading.Event()

    class Hanging(Places):
        def find(self, name: str) -> Place:
            if name == "hangs":
                answers.wait(ANSWER_S)
            return super().find(name)

    book = written(tmp_path)
    given = [Place("mine", book.folder, None), Place("hangs", book.folder, None)]
    before = {*threading.enumerate()}
    served = Served(Hanging(given, None, broker_alone=False))
    served.login()
    addresses = ("/api/trials?name=hangs", "/api/trial?name=hangs&trial=1", "/api/log?name=hangs&trial=1")
    with ThreadPoolExecutor(60) as pool:
        try:
            asked = [pool.submit(served.ask, addresses[number % 3]) for number in range(60)]
            for path in ("/api/me", "/api/experiments", "/api/trials?name=mine", "/api/trial?name=mine&trial=0001"):
                assert served.ask(path)[0] == 200
            assert not any(each.done() for each in asked)

            served.close()

            def ours() -> list[str]:
                threads = {*threading.enumerate()} - before
                return [thread.name for thread in threads if not thread.name.startswith(POOL) and not thread.daemon]

            # The server's own threads end a moment after its loop. The process would wait for any other.
            eventually(lambda: ours() == [])
        finally:
            answers.set()
        for each in asked:
            with contextlib.suppress(OSError, http.client.HTTPException):
                each.result()
