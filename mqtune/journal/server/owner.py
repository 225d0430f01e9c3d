"""Find this process's owner on a server."""

from __future__ import annotations

import redis

from mqtune.core.owner import NOBODY, Owner, this_owner
from mqtune.core.submission import this_submission
from mqtune.journal.server.connection import account_of


def person(client: redis.Redis) -> Owner:
    """Return this process's owner on a server; a submitted script belongs to its submitter."""
    me, submitted = this_owner(account_of(client)), this_submission()
    return me if submitted is None or submitted.owner == NOBODY else submitted.owner
