"""Bundles of code: their files, their signatures, and the keys of teams."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import pytest

from mqtune.core.codec import encode_value
from mqtune.core.errors import CodeRefused, ConfigurationError
from mqtune.trainable import Bundle, CodeKeys, File, is_signed, signature, unpack

KEY, OTHER_KEY = "a key of sixteen letters", "another key of some letters"
#: The most bytes that may travel.
MOST_BYTES = 32 << 20


def bundle_of(*entries: Any, version: int = 1) -> Bundle:
    """A bundle that somebody has made by hand, with the right hash."""
    plain = encode_value([version, list(entries)])
    return Bundle(hashlib.sha256(plain).hexdigest(), zlib.compress(plain))


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../up", "a/../../up", "a//b", "./a", "a/", "", ".", "..", "a\0b", "a\\..\\b", 7, "x" * 5_000],
)
def test_a_name_that_leads_elsewhere_is_refused(name: object):
    with pytest.raises(CodeRefused, match=r"is not a relative path of a plain file|can't be read"):
        bundle_of([name, b"", False]).files()


def test_what_is_no_bundle_is_refused():
    good = Bundle.of({"a.py": File(b"1")})
    for bad, why in (
        (Bundle(good.digest, good.data[:-3]), "does not match its hash"),
        (Bundle(good.digest, b"\0" * 9), "damaged"),
        (Bundle(good.digest, Bundle.of({"a.py": File(b"2")}).data), "does not match its hash"),
        (Bundle(good.digest, zlib.compress(bytes(2 * MOST_BYTES))), "does not match its hash"),
        (bundle_of(["a", "text", False]), "not a relative path of a plain file"),
        (bundle_of(["a", b""]), "can't be read"),
        (bundle_of(version=2), "version 2.*upgrade"),
        (bundle_of(["a", bytes(MOST_BYTES + 1), False]), "32 MiB"),
    ):
        with pytest.raises(CodeRefused, match=why):
            bad.files()


def test_nothing_is_overwritten(tmp_path: Path):
    with pytest.raises(FileExistsError):
        unpack({"a": File(b"1")}, tmp_path)


def test_the_key_of_the_first_pattern_that_fits_a_name_counts() -> None:
    keys = CodeKeys(f"team-a-special=x{KEY}, team-a-*={KEY},team-b-*={OTHER_KEY}")

    keys.check("--accept-code")
    assert keys.of("team-a-special") == f"x{KEY}"
    assert (keys.of("team-a-1"), keys.of("team-b-1")) == (KEY, OTHER_KEY)
    with pytest.raises(CodeRefused, match=r"no key for 'team-c-1'; it has keys for team-a-special, team-a-\*"):
        keys.of("team-c-1")


@pytest.mark.parametrize("text", [f"team-a-*={KEY},{OTHER_KEY}", f"a*={KEY},a*={OTHER_KEY}", "team-a-*=short", ""])
def test_what_is_no_key_for_some_names_is_refused_without_saying_a_key(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--drivers needs MQTUNE_CODE_KEY") as refused:
        CodeKeys(text).check("--drivers")
    assert KEY not in str(refused.value)
    with pytest.raises(CodeRefused):
        CodeKeys("").of("anything")


def test_a_signature_is_of_one_key_and_one_bundle():
    assert is_signed(KEY, "d1", signature(KEY, "d1"))
    for key, digest, found in (
        (KEY, "d2", signature(KEY, "d1")),
        ("x" * 16, "d1", signature(KEY, "d1")),
        (KEY, "d1", "ü"),
        (KEY, "d1", signature(KEY, "d1", "submission")),
    ):
        assert not is_signed(key, digest, found)
