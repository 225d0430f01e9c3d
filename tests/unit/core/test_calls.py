from __future__ import annotations

import sys

import pytest

from mqtune.core.calls import signature_of


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before PEP 649 the definition itself fails")
def test_an_annotation_that_only_a_type_checker_can_read_is_no_hindrance():
    names: dict[str, object] = {}
    exec(compile("def train(config: Absent, *, reporter=None): ...", "train.py", "exec", dont_inherit=True), names)

    assert list(signature_of(names["train"]).parameters) == ["config", "reporter"]  # type: ignore[arg-type]
