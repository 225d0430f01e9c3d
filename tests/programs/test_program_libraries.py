"""Programs of large libraries, run where these are installed: their default folders belong to each trial."""

from __future__ import annotations

import pytest
from harness import Programs

#: Their imports take seconds, in the driver, by hand, and on each worker.
pytestmark = pytest.mark.timeout(900)


def test_lightning_with_its_default_folder(programs: Programs):
    pytest.importorskip("lightning")
    programs.check("lightning_real.py")


def test_the_trainer_of_transformers_with_its_default_folder(programs: Programs):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    programs.check("trainer_real.py")
