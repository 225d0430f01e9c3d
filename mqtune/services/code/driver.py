"""The driver's part of code: the project whose files it brings to workers."""

from __future__ import annotations

from typing import Final

from mqtune.driver import MakeProject
from mqtune.services.code.project import Project

#: Makes the project of an experiment.
for_settings: Final[MakeProject] = Project
