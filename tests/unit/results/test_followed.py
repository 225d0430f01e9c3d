"""A followed experiment takes in each entry once, whatever becomes of the file and the server that it comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from book import Book

from mqtune.core.errors import BrokerUnavailable, ConfigurationError, CopyIncomplete
from mqtune.core.events import ExperimentCreated
from mqtune.core.trial import Report, Trial, TrialId, TrialStatus
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile
from mqtune.results import Fold, FolderSource, Followed, Replaced

FIRST = TrialId("0001")


class Heard(Fold):
    """A fold that notes the values of reports that count."""

    def __init__(self, created: ExperimentCreated) -> None:
        super().__init__(created)
        self.values: list[float] = []

    def on_report(self, report: Report, trial: Trial) -> None:
        self.values.append(report.metrics["loss"])


class Server:
    """A source that may be away."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.is_away = self.is_closed = False

    def read(self, timeout_s: float) -> list[Entry]:
        del timeout_s
        if self.is_away:
            raise BrokerUnavailable("it is away")
        found, self.entries = self.entries, []
        return found

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = Book(tmp_path / "mine")
    book.stage("0001")
    book.report("0001", {"loss": 3.0}, {"loss": 2.0})
    book.save()
    return book


@pytest.fixture
def file(book: Book) -> Iterator[JournalFile]:
    with contextlib.closing(JournalFile(book.folder / JOURNAL_FILE)) as file:
        file.begin(book.entries)
        yield file


def followed(book: Book) -> Followed[Heard]:
    return Followed(FolderSource(book.folder), "mine", Heard)


def test_a_copy_that_lacks_entries_says_so(book: Book, file: JournalFile) -> None:
    live = followed(book)
    with file.path.open("ab") as written:
        # In half an entry, of an id of nine characters: the mark of a copy that lacks entries.
        written.write(b"\x92\xa9" + b"\xc1\xc1")

    with pytest.raises(CopyIncomplete, match="lacks the last entries of experiment 'mine'"):
        live.fold_new(0)


def test_an_entry_that_the_ones_before_do_not_allow_is_left_out(book: Book) -> None:
    unknown = Book(book.folder)
    unknown.attempts["0009"], unknown.sequences["0009"] = 1, 0
    unknown.report("0009", {"loss": 0.0})
    server = Server([*book.entries])
    live = Followed(server, "mine", Heard)
    server.entries = [Entry("90-0", unknown.entries[-1].data)]
    book.report("0001", {"loss": 1.0})
    server.entries.append(Entry("91-0", book.entries[-1].data))

    assert live.fold_new(0)

    assert (live.fold.values, live.fold.is_out_of_order, live.last) == ([3.0, 2.0, 1.0], True, "91-0")


def test_a_server_that_is_away_is_an_error_until_the_experiment_has_ended(book: Book) -> None:
    server = Server([*book.entries])
    live = Followed(server, "mine", Heard)
    server.is_away = True
    with pytest.raises(BrokerUnavailable):
        live.fold_new(0)
    server.is_away, before = False, len(book.entries)
    book.end("0001")
    book.finish()
    server.entries = book.entries[before:]
    assert live.fold_new(0)
    server.is_away = True

    assert not live.fold_new(0)

    assert live.fold.experiment.trials[FIRST].status is TrialStatus.COMPLETED


def test_an_experiment_that_has_not_begun_is_an_error_and_its_source_is_closed() -> None:
    server = Server([])

    with pytest.raises(ConfigurationError, match="'mine' has not begun yet"):
        Followed(server, "mine", Heard)

    assert server.is_closed


def test_a_file_is_read_on_from_its_last_complete_entry(tmp_path: Path) -> None:
    entries = [Entry(f"{number}-0", bytes(range(number)) * 50) for number in range(1, 8)]
    file = JournalFile(tmp_path / JOURNAL_FILE)
    file.begin(entries[:2])
    source = FolderSource(tmp_path)
    assert [source.read(0), source.read(0)] == [entries[:2], []]

    file.append(entries[2:4])
    whole = file.path.read_bytes()
    file.append(entries[4:5])
    cut = file.path.read_bytes()[:-3]
    file.path.write_bytes(cut)
    assert source.read(0) == entries[2:4]
    file.path.write_bytes(whole + cut[len(whole) :])
    file.close()
    assert source.read(0) == []

    file.begin(entries[:6])
    with pytest.raises(Replaced):
        source.read(0)
    assert source.read(0) == entries[:6]
    file.append(entries[6:])
    file.close()
    assert source.read(0) == entries[6:]
