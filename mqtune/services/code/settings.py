"""The operator's settings for code that drivers send."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqtune.trainable import ACCEPTS_TAG, KEY_VARIABLE, CodeKeys
from mqtune.worker import ServiceSettings, option

if TYPE_CHECKING:
    from mqtune.worker import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSettings(ServiceSettings):
    """Whether a worker runs code that drivers send.

    Raises:
        ConfigurationError: the code has no valid key.
    """

    accept_code: bool = option(
        False, f"Run code that drivers send (Process(bundle=…)), if it is signed with ${KEY_VARIABLE}."
    )

    def check(self, settings: WorkerSettings) -> None:
        if self.accept_code:
            CodeKeys(settings.code_key).check("--accept-code")

    def tags(self) -> Iterable[str]:
        return (ACCEPTS_TAG,) * self.accept_code
