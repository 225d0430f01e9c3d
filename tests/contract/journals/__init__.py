"""What every journal keeps of the promises in mqtune.journal.base; subclass JournalContract and give it a world."""

from __future__ import annotations

from contract.journals.chapters import ChapterContract
from contract.journals.checkpoints import CheckpointContract
from contract.journals.gangs import GangContract
from contract.journals.intents import IntentContract
from contract.journals.leases import LeaseContract
from contract.journals.lock import LockContract
from contract.journals.loss import LossContract
from contract.journals.orders import OrderContract
from contract.journals.reading import ReadContract
from contract.journals.reports import ReportContract
from contract.journals.requests import RequestContract
from contract.journals.restoring import RestoreContract
from contract.journals.staging import StagingContract
from contract.journals.world import World

__all__ = ["JournalContract", "World"]


class JournalContract(
    LockContract,
    StagingContract,
    ReportContract,
    IntentContract,
    OrderContract,
    CheckpointContract,
    LeaseContract,
    LossContract,
    GangContract,
    ReadContract,
    RestoreContract,
    RequestContract,
    ChapterContract,
):
    """The tests that a journal must pass.

    A subclass whose name pytest collects has a fixture ``world`` that returns a ``World`` with a server of its own::

        class TestMyJournal(JournalContract):
            @pytest.fixture
            def world(self) -> World:
                return MyWorld()
    """
