"""Submissions: driver scripts that workers run in driver slots, so that users need not stay."""

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

#: Stands for a trial's id in requests for the output of a submitted script.
DRIVER: Final = "driver"
_VERSION: Final = 1
#: The environment variable that tells a script about its submission.
_VARIABLE: Final = "MQTUNE_SUBMISSION"


class Submission(NamedTuple):
    """A submitted script. Its encoding is signed, so nobody without the key can change it.

    Attributes:
        name: its name, and the default name of its experiment.
        script: the script's path in the bundle.
        bundle: the digest of the bundle with its code.
        owner: the person or program that has submitted it.
        at: the time of the submission, in seconds since the epoch, by the server's clock.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    bundle: str
    owner: Owner
    at: Number

    def encode(self) -> bytes:
        """Encode the submission."""
        return encode_value([_VERSION, self._asdict()])

    @classmethod
    def decode(cls, data: bytes) -> Submission:
        """Decode a submission. Unknown fields are ignored.

        Raises:
            MessageVersionError: the version is unknown, or the bytes are not a submission.
        """
        try:
            version, body = decode_value(data)
            if not is_version(version, _VERSION):
                raise MessageVersionError(
                    f"a submission has version {reprlib.repr(version)}; this mqtune reads {_VERSION}: upgrade it"
                )
            return from_plain(cls, [body[name] for name in cls._fields])
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"a queued submission can't be read: {reprlib.repr(data)}: {error}") from None


class SubmittedRun(NamedTuple):
    """A run of a submitted script, as the script itself sees it.

    ``is_first`` says whether it is the submission's first run. The owner is ``NOBODY`` for a script that was not
    submitted but run here under a given name; its process is the owner then.
    """

    name: str
    is_first: bool
    owner: Owner

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables of the script."""
        return {_VARIABLE: json.dumps(self)}


def this_submission() -> SubmittedRun | None:
    """Return the run of a submission that this process is, or None."""
    try:
        name, is_first, owner = json.loads(os.environ.get(_VARIABLE, "null"))
        return SubmittedRun(str(name), bool(is_first), Owner(*map(str, owner)))
    except (ValueError, TypeError):
        return None
