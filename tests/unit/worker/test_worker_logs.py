"""A log file stays short, and keeps the beginning and the end of the output."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from impaired import nothing_impaired
from waiting import eventually

from mqtune.core.impairment import WHOLE_WORKER, Impairment
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import Claim
from mqtune.worker import Impairments, LogLimits, Logs, open_log

CLAIM = Claim(TrialId("0001"), 2, "token")
LINE = b"%09d\n"
LINE_BYTES = len(LINE % 0)
QUICK = Timing(look_at_logs_s=0.001, try_logs_s=0.01)
#: Files are kept within 10,000 bytes.
SHORT = LogLimits(max_bytes=10_000, first_bytes=1_000, last_bytes=3_000, moved_bytes=700, remembered=10)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    with contextlib.closing(Logs(tmp_path / "logs", (), nothing_impaired(), SHORT, QUICK)) as logs:
        yield logs


def numbered(first: int, size: int) -> bytes:
    """Return lines of ten bytes with their numbers, of this total size."""
    return b"".join(LINE % number for number in range(first, first + size // LINE_BYTES))


def begin(logs: Logs) -> tuple[Path, Path]:
    files = logs.files("exp", CLAIM)
    logs.begin(*files)
    return files


def test_a_long_file_keeps_its_first_and_its_last_part_and_says_how_much_is_missing(logs: Logs) -> None:
    stdout, _ = begin(logs)
    stdout.write_bytes(numbered(0, 5_000_000))

    tail = logs.end(stdout, 20)

    data = stdout.read_bytes()
    first, mark, last = data[:1_000], data[1_000:-3_000].decode(), data[-3_000:]
    assert first == numbered(0, 1_000)
    assert last == numbered(500_000 - 300, 3_000)
    assert "4 MiB" in mark
    assert tail == "000499998\n000499999\n"


def test_a_file_that_was_deleted_or_can_not_be_shortened_ends_nothing(logs: Logs) -> None:
    stdout, stderr = begin(logs)
    stderr.mkdir()
    logs.start()
    stdout.write_bytes(b"x" * 100_000)
    eventually(lambda: stdout.stat().st_size < 10_000, 60)
    stdout.unlink()

    assert logs.end(stdout, 10) == ""
    assert "can't be read" in logs.end(stderr, 10)
    other, _ = files = logs.files("other", CLAIM)
    logs.begin(*files)
    other.write_bytes(b"y" * 100_000)
    eventually(lambda: other.stat().st_size < 10_000, 60)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_linked_file_stays_whole(logs: Logs, tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    (data := tmp_path / "data").write_bytes(numbered(0, 50_000))
    stdout, stderr = begin(logs)
    stderr.write_bytes(numbered(0, 50_000))
    link(data, stdout)

    logs.start()
    eventually(lambda: stderr.stat().st_size < 10_000)
    logs.check_files()

    assert data.read_bytes() == numbered(0, 50_000)


def test_without_a_folder_an_attempt_runs_and_its_record_says_why_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    logs = Logs(tmp_path / "logs", (), nothing_impaired())

    assert logs.make(*logs.files("exp", CLAIM)) == []
    stdout, stderr = begin(logs)

    assert "Not a directory" in logs.end(stdout, 100)
    assert "Not a directory" in logs.end(stderr, 100)
    with open_log(tmp_path / "logs" / "slot-0.log") as file:
        file.write(b"goes nowhere")


def test_the_folder_has_one_mark_for_all_who_share_it_and_another_folder_another(tmp_path: Path) -> None:
    marks = {Logs(tmp_path / "shared", (), nothing_impaired()).mark for _ in range(3)}

    assert len(marks) == 1
    assert marks != {Logs(tmp_path / "another", (), nothing_impaired()).mark}
    assert "" not in marks
    assert [path.name for path in (tmp_path / "shared").iterdir()] == [".mqtune-logs"]
    (tmp_path / "file").write_text("in the way")
    assert Logs(tmp_path / "file" / "logs", (), nothing_impaired()).mark == ""


def test_a_full_disk_is_an_impairment_until_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    disk = Mock(wraps=tempfile.TemporaryFile, side_effect=full)
    monkeypatch.setattr(tempfile, "TemporaryFile", disk)
    changed = Mock()
    known = Impairments(changed, clock=lambda: 5.0)
    with contextlib.closing(Logs(tmp_path / "logs", (), known, timing=QUICK)) as logs:
        logs.start()
        # Said only after it is known.
        eventually(lambda: changed.called)
        text = f"as {tmp_path}/logs can't be written: No space left on device"
        assert known.all == [Impairment(WHOLE_WORKER, "logs", text, "it can be written", 5.0)]
        assert known.all[0].reason == f"the worker keeps no output of trials, {text}"
        assert not known.closes(0, [WHOLE_WORKER]), "trials run without logs"
        stdout, stderr = begin(logs)
        stdout.write_text("a part")
        assert logs.end(stdout, 100) == f"(some output may be missing, {text})\na part"
        assert changed.call_count == 1, "it is said once"

        disk.side_effect = None

        eventually(lambda: not known.all)
        assert logs.end(stderr, 100) == ""
        assert list((tmp_path / "logs").iterdir()) == [tmp_path / "logs/exp"], "to try it leaves nothing there"
