"""The operator's settings for driver slots."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqtune.core.errors import AccessDenied, ConfigurationError, WorkerStartError
from mqtune.core.resources import Resources
from mqtune.journal import RedisClient, connect
from mqtune.trainable import CodeKeys
from mqtune.worker import ServiceSettings, SlotPlan, option, usable_cpus

if TYPE_CHECKING:
    from mqtune.worker import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionSettings(ServiceSettings):
    """The number of driver slots, each for one submitted script, and the server's URL for these scripts.

    Raises:
        ConfigurationError: the number is negative, there is no key for signed scripts, or a URL has no use.
    """

    drivers: int = option(
        0,
        "Number of driver slots: how many scripts from `mqtune submit` run at the same time, if they are signed with "
        "$MQTUNE_CODE_KEY. They use no slots of trials.",
    )
    #: Empty for the worker's own.
    driver_broker: str = option(
        "",
        "The same Redis server with a driver's account, for those scripts; by default --broker.",
        metavar="URL",
        is_secret=True,
    )

    def check(self, settings: WorkerSettings) -> None:
        if self.drivers < 0:
            raise ConfigurationError(f"--drivers {self.drivers}: must be at least 0")
        if self.drivers:
            CodeKeys(settings.code_key).check("--drivers")
        elif self.driver_broker:
            raise ConfigurationError("--driver-broker is for the scripts that run in driver slots: give --drivers, too")

    def plan(self, settings: WorkerSettings, tags: Sequence[str]) -> SlotPlan | None:
        """Return a plan without slots if the worker is to have driver slots alone."""
        if settings.slots != 0 or not self.drivers:
            return None
        return SlotPlan(offer=Resources(cpus=settings.cpus or usable_cpus(), tags=tags), devices=())

    def check_start(self, client: RedisClient, plan: SlotPlan, settings: WorkerSettings) -> None:
        """Check that the scripts of driver slots have a driver's account.

        Raises:
            WorkerStartError: the account is not a driver's.
        """
        if not self.drivers:
            return
        from mqtune.services.submissions.board import Submissions  # noqa: PLC0415 - only where there are driver slots

        url, timing = self.driver_broker, settings.timing
        with contextlib.ExitStack() as stack:
            if url:
                client = stack.enter_context(contextlib.closing(connect(url, timing=timing, role="driver")))
            try:
                Submissions(client, patience_s=timing.connect_timeout_s).due()
            except AccessDenied as error:
                raise WorkerStartError(
                    f"--drivers {self.drivers}: scripts drive experiments, and "
                    f"{'--driver-broker' if url else '--broker'} has no driver's account; give one by --driver-broker, "
                    f"or MQTUNE_DRIVER_BROKER: {error}"
                ) from None
