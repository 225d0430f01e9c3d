"""What every journal keeps of the promises in mqtune.journal.base; subclass JournalContract and give it a world."""

from __future__ import annotations

from mqtune.testing.journals.checkpoints import CheckpointContract
from mqtune.testing.journals.intents import IntentContract
from mqtune.testing.journals.leases import LeaseContract
from mqtune.testing.journals.lock import LockContract
from mqtune.testing.journals.loss import LossContract
from mqtune.testing.journals.reading import ReadContract
from mqtune.testing.journals.reports import ReportContract
from mqtune.testing.journals.restoring import RestoreContract
from mqtune.testing.journals.staging import StagingContract
from mqtune.testing.journals.wishes import WishContract
from mqtune.testing.journals.world import World

__all__ = ["JournalContract", "World"]


class JournalContract(
    LockContract,
    StagingContract,
    ReportContract,
    IntentContract,
    WishContract,
    CheckpointContract,
    LeaseContract,
    LossContract,
    ReadContract,
    RestoreContract,
):
    """The tests that a journal must pass.

    A subclass whose name pytest collects has a fixture ``world`` that returns a ``World`` with a server of its own::

        class TestMyJournal(JournalContract):
            @pytest.fixture
            def world(self) -> World:
                return MyWorld()
    """
