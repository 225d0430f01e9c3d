"""Figures of workers for Prometheus."""

from __future__ import annotations

import socket

import pytest

from mqtune.core.errors import ConfigurationError

prometheus = pytest.importorskip("mqtune.services.exporter.prometheus")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} can't be listened on"):
            prometheus.serve_figures(port, "127.0.0.1", list)
