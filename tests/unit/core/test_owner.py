"""The owner of an experiment or a worker, on any machine and by any account, and submissions with their owners."""

from __future__ import annotations

import getpass
import socket

import pytest

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.core.owner import NOBODY, Owner, this_owner
from mqtune.core.submission import Submission, SubmittedRun, this_submission

ADA = Owner("team-a", "ada", "lap")


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (Owner("team-a", "ada", "head"), True),
        (Owner("", "ada", "lap"), True),
        (Owner("mqtune-operator", "ada", "lap"), True),
        (Owner("team-a", "bob", "lap"), False),
        (NOBODY, False),
    ],
)
def test_an_owner_is_the_same_on_another_machine_and_with_another_account(other: Owner, *, is_same: bool) -> None:
    assert ADA.is_same(other) is is_same


def test_an_owner_is_asked_for_by_account_user_or_user_and_host() -> None:
    assert all(ADA.matches(text) for text in ("team-a", "ada", "ada@lap"))
    assert not any(ADA.matches(text) for text in ("", "lap", "ad", "ada@head"))
    assert not NOBODY.matches("")


def test_this_process_is_its_users_also_where_that_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert this_owner("team-a") == Owner("team-a", "ada", socket.gethostname())

    def fails() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", fails)
    assert this_owner().user.isdecimal()


SUBMISSION = Submission("sweep", "src/tune.py", ("--epochs", "5"), "ab" * 32, ADA, 12.5)
FIELDS = decode_value(SUBMISSION.encode())[1]


def test_a_submission_comes_back_as_it_was_and_fields_of_later_versions_are_ignored():
    assert Submission.decode(SUBMISSION.encode()) == SUBMISSION
    later = encode_value([1, {**FIELDS, "since": "a later version"}])
    assert Submission.decode(later) == SUBMISSION


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_value([1]),
        encode_value([1, {"name": "sweep"}]),
        encode_value([1, {**FIELDS, "arguments": [1]}]),
        encode_value([1, {**FIELDS, "owner": ["a"] * 4}]),
        encode_value([1, {**FIELDS, "at": "soon"}]),
        encode_value([1, {**FIELDS, "at": True}]),
    ],
)
def test_what_makes_no_sense_is_no_submission(data: bytes):
    with pytest.raises(MessageVersionError, match="a queued submission can't be read"):
        Submission.decode(data)


@pytest.mark.parametrize("version", [2, True, 1.0])
def test_a_version_that_is_not_known_is_said(version: object):
    with pytest.raises(MessageVersionError, match=f"version {version}; this mqtune reads 1: upgrade it"):
        Submission.decode(encode_value([version, FIELDS]))


def test_a_script_knows_of_which_submission_it_is_a_run(monkeypatch: pytest.MonkeyPatch):
    assert this_submission() is None
    run = SubmittedRun("sweep", is_first=False, owner=ADA)
    ((name, value),) = run.variables().items()
    monkeypatch.setenv(name, value)
    assert this_submission() == run
    for nonsense in ("", "{", "[1]", '["sweep", true, ["a", "b", "c", "d"]]'):
        monkeypatch.setenv(name, nonsense)
        assert this_submission() is None
