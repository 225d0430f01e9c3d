"""The causes of waiting that shares and quotas add to ``mqtune why``."""

from __future__ import annotations

from typing import Final

from mqtune.core.cause import Cause
from mqtune.services.shares.divider import QUOTA_USED, SHARE_USED

CAUSES: Final = {
    "share": Cause("The experiment has used up its share of the slots.", "get more slots: {MORE}", begins=SHARE_USED),
    "quota": Cause(
        "A quota of the operator is used up.", "see the quotas, or set one: mqtune fleet quota", begins=QUOTA_USED
    ),
    "account": Cause("This account may not read the quotas.", "create the account again: mqtune fleet acl"),
}
