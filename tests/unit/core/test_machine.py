from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtune.core.machine import replace_file


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


#: Prints to closed streams, and writes into a file whether its number is above theirs.
OPENS = """
import os, sys
from mqtune.core.machine import open_standard_streams

open_standard_streams()
with open(sys.argv[1], "w") as file:
    print("in nobody's file")
    print("nor this", file=sys.stderr, flush=True)
    sys.stdout.flush()
    print(file.fileno() > 2, sys.stdin.read() == "", file=file)
"""


def test_no_file_gets_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    said = tmp_path / "said"

    subprocess.run(["sh", "-c", '"$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, OPENS, said], check=True, timeout=60)

    assert said.read_text() == "True True\n"
