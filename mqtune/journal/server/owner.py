"""The owner of this process on a server."""

from __future__ import annotations

import redis

from mqtune.core.owner import NOBODY, Owner, this_owner
from mqtune.core.submission import this_submission
from mqtune.journal.server.connection import account_of


def person(client: redis.Redis) -> Owner:
    """Return this process's owner on a server. For a submitted script, it is the submitter."""
    me, submitted = this_owner(account_of(client)), this_submission()
    return me if submitted is None or submitted.owner == NOBODY else submitted.owner
