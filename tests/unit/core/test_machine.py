from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtune.core.machine import end_of_file, replace_file


def test_the_end_of_a_file_is_its_last_bytes_as_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("ä and more".encode())

    assert end_of_file(path, 4) == "more"
    assert end_of_file(path, 10) == "\ufffd and more"
    assert end_of_file(path, 100) == "ä and more"


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, [b"one", b" two"])

    def breaks() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        replace_file(path, breaks())

    assert path.read_bytes() == b"one two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_its_owners_alone_from_its_first_byte_on(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.with_name("secret.new").write_text("what a crash has left")
    seen = []

    def looks() -> Iterator[bytes]:
        seen.append(path.with_name("secret.new").stat().st_mode & 0o777)
        yield b"hush"

    replace_file(path, looks(), mode=0o600)

    assert seen == [0o600]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == b"hush"
