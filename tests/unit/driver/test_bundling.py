"""The code that a driver leaves on a server for its workers, and the requirements that differ."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mqtune.core.errors import ConfigurationError
from mqtune.driver import bring, differences
from mqtune.trainable import Bundle, File

KEY = "a key of sixteen letters"


def test_what_a_server_has_is_never_signed_for_it():
    bundle = Bundle.of({"train.py": File(b"")})

    def server(signature: str | None = None) -> Any:
        return SimpleNamespace(signature=lambda _: signature, bundle=lambda _: bundle)

    # It takes nothing: without a method for that, to put something there would raise.
    bring({"bundle": bundle.digest}, None, server("their own"), KEY, is_own=False)
    bring({}, None, server(), "", is_own=False)
    with pytest.raises(ConfigurationError, match="is not on this machine: run its script instead"):
        bring({"bundle": bundle.digest}, None, server(), KEY, is_own=False)
    with pytest.raises(ConfigurationError, match="is not on this machine"):
        bring({"bundle": bundle.digest}, None, server("ours"), KEY, is_own=True)


def test_python_and_packages_that_differ_are_said_in_a_few_words():
    here = {"python": ".".join(map(str, sys.version_info[:3])), "packages": {"pytest": pytest.__version__}}
    assert differences(here) == ""
    # The distribution of yaml is PyYAML.
    packages = {"pytest": "1.0", "yaml": "1.0", "no_such_package": "3", "msgpack0": "0", "msgpack1": "0"}
    said = differences({"python": "2.7.18", "packages": packages})
    assert said == (
        f"Python 2.7.18 (here {here['python']}), pytest 1.0 (here {pytest.__version__}), yaml 1.0 (here {yaml.__version__})"
    )
