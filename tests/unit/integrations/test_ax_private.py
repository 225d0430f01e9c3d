"""That this version of Ax, and of BoTorch under it, has what mqtune uses and they keep to themselves."""

from __future__ import annotations

import pytest
from partners import check_has

pytest.importorskip("ax")

from ax.api.client import Client
from ax.core.data import Data
from botorch.acquisition.multi_objective import logei

# Of what Ax does by itself.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator)\b")

#: By their members: the library, and what has it.
OWNERS = {
    "_maybe_experiment": ("ax-platform", Client()),
    "_maybe_generation_strategy": ("ax-platform", Client()),
    "_data_rows": ("ax-platform", Data()),
    "_load_attempted": ("botorch", logei),
}


@pytest.mark.parametrize("member", OWNERS)
def test_ax_has_the_member_that_it_keeps_to_itself(member: str) -> None:
    library, owner = OWNERS[member]

    check_has(library, owner, member, "ax_private.py")
