"""What every journal keeps of the promises in mqtune.journal.base; subclass JournalContract and give it a world."""

from __future__ import annotations

from contract.journals.gangs import GangContract
from contract.journals.intents import IntentContract, OrderContract, RequestContract
from contract.journals.leases import LeaseContract
from contract.journals.lock import LockContract, LossContract
from contract.journals.reports import CheckpointContract, ReadContract, ReportContract
from contract.journals.restoring import ChapterContract, RestoreContract
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
