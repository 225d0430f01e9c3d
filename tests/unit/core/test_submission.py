"""What a submission says, what is not believed to be one, and what a script knows of its own."""

from __future__ import annotations

import pytest

from mqtune.core.codec import encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.core.owner import Owner
from mqtune.core.submission import Submission, SubmittedRun, this_submission

ADA = Owner("team-a", "ada", "laptop")
SUBMISSION = Submission("sweep", "src/tune.py", ("--epochs", "5"), "ab" * 32, ADA, 12.5)


def test_a_submission_comes_back_as_it_was_and_fields_of_later_versions_are_ignored():
    assert Submission.decode(SUBMISSION.encode()) == SUBMISSION
    later = encode_value([1, {**SUBMISSION._asdict(), "since": "a later version"}])
    assert Submission.decode(later) == SUBMISSION


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_value([1]),
        encode_value([1, {"name": "sweep"}]),
        encode_value([1, {**SUBMISSION._asdict(), "arguments": [1]}]),
        encode_value([1, {**SUBMISSION._asdict(), "owner": ["a"] * 4}]),
        encode_value([1, {**SUBMISSION._asdict(), "at": "soon"}]),
        encode_value([1, {**SUBMISSION._asdict(), "at": True}]),
    ],
)
def test_what_makes_no_sense_is_no_submission(data: bytes):
    with pytest.raises(MessageVersionError, match="a submission is"):
        Submission.decode(data)


@pytest.mark.parametrize("version", [2, True, 1.0])
def test_a_version_that_is_not_known_is_said(version: object):
    with pytest.raises(MessageVersionError, match=f"version {version}; this mqtune reads 1: upgrade it"):
        Submission.decode(encode_value([version, SUBMISSION._asdict()]))


def test_a_script_knows_of_which_submission_it_is_a_run(monkeypatch: pytest.MonkeyPatch):
    assert this_submission() is None
    run = SubmittedRun("sweep", is_first=False, owner=ADA)
    ((name, value),) = run.variables().items()
    monkeypatch.setenv(name, value)
    assert this_submission() == run
    for nonsense in ("", "{", "[1]", '["sweep", true, ["a", "b", "c", "d"]]'):
        monkeypatch.setenv(name, nonsense)
        assert this_submission() is None
