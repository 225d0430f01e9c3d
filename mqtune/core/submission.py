"""Submissions: scripts that workers with driver slots run while their users are away."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqtune.core.codec import Number, decode_value, encode_value, is_version
from mqtune.core.errors import MessageVersionError
from mqtune.core.owner import Owner
from mqtune.core.plain import from_plain

#: In place of a trial's id, where the output of a submission's script is meant.
DRIVER: Final = "driver"
_VERSION: Final = 1
#: The environment variable by which a script, and mqtune in it, knows that it was submitted.
_VARIABLE: Final = "MQTUNE_SUBMISSION"


class Submission(NamedTuple):
    """A script that was submitted. Its encoding is signed, so that nobody without the key has another one run.

    Attributes:
        name: its name, and that of its experiment unless the script says another.
        script: the script's path in the bundle.
        arguments: the script's arguments.
        bundle: the digest of the bundle with its code.
        owner: who has submitted it.
        at: when, in seconds since the epoch, by the server's clock.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    bundle: str
    owner: Owner
    at: Number

    def encode(self) -> bytes:
        """Encode it."""
        return encode_value([_VERSION, self._asdict()])

    @classmethod
    def decode(cls, data: bytes) -> Submission:
        """Return what was encoded; fields that are not known are ignored.

        Raises:
            MessageVersionError: the version is not known, or the bytes are no submission.
        """
        try:
            version, body = decode_value(data)
            if not is_version(version, _VERSION):
                raise MessageVersionError(
                    f"a submission has version {reprlib.repr(version)}; this mqtune reads {_VERSION}: upgrade it"
                )
            return from_plain(cls, [body[name] for name in cls._fields])
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"a submission is {reprlib.repr(data)}, which can't be read: {error}") from None


class SubmittedRun(NamedTuple):
    """A run of a submission, as its script knows it: its name, whether it has not run before, and its owner.

    One that runs where it was called, and was given a name, has no other owner than its process.
    """

    name: str
    is_first: bool
    owner: Owner

    def variables(self) -> Mapping[str, str]:
        """Return what the script's environment has of it."""
        return {_VARIABLE: json.dumps(self)}


def this_submission() -> SubmittedRun | None:
    """Return of which submission this process is a run; None where it is none."""
    try:
        name, is_first, owner = json.loads(os.environ.get(_VARIABLE, "null"))
        return SubmittedRun(str(name), bool(is_first), Owner(*map(str, owner)))
    except (ValueError, TypeError):
        return None
