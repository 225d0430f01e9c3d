"""A Redis behind TLS: who it is is checked by driver, worker, Celery and Flower, and what is wrong is said at once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trainables
import trainables_saving as saving
from faulty_proxy import FaultyProxy
from kombu import Connection
from kombu.exceptions import OperationalError
from pair import counting, tuners
from running import running_worker, tuner_on
from tls import Authority, TlsProxy

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.trial import TrialStatus
from mqtune.journal import celery_url, connect


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("tls-server"), binary=find_binary()) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: EmbeddedServer, authority: Authority) -> Iterator[TlsProxy]:
    with TlsProxy(server.url, authority) as proxy:
        yield proxy


def test_a_whole_experiment_runs_over_tls_with_certificates_on_both_sides(
    server: EmbeddedServer, authority: Authority, tmp_path: Path
):
    with TlsProxy(server.url, authority, wants_certificates=True) as proxy:
        url = proxy.url(
            ssl_ca_certs=authority.certificate,
            ssl_certfile=authority.client_certificate,
            ssl_keyfile=authority.client_key,
        )
        options = ["--gpus", "0", "--slots", "2", "--cpus", "10"]
        with running_worker(url, tmp_path / "w.log", *options) as worker, tuners(url, tmp_path / "store") as tune:
            tuner = tune(saving.CountsInDict, counting(20), counting(20), store=None)
            results = tuner.run()
            assert worker.poll() is None

        assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 2
        with pytest.raises(BrokerUnavailable, match=r"certificate required|no Redis answers"):
            connect(proxy.url(ssl_ca_certs=authority.certificate))


def test_a_driver_says_at_once_whose_certificate_it_does_not_trust(
    server: EmbeddedServer, proxy: TlsProxy, authority: Authority, stranger: Authority
):
    with TlsProxy(server.url, authority, name="elsewhere.example.org") as misnamed:
        for url, words in (
            (proxy.url(ssl_ca_certs=stranger.certificate), "is not trusted .*ssl_ca_certs="),
            (proxy.url(), "is not trusted .*ssl_ca_certs="),
            (
                misnamed.url(ssl_ca_certs=authority.certificate),
                "is not trusted .*[Hh]ostname mismatch.*the host's name",
            ),
        ):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable, match=words):
                tuner_on(url, trainables.steady, {"x": mqtune.uniform(0, 1)}).run()
            assert time.monotonic() - began < 20
            # Celery checks it too.
            with (
                contextlib.closing(Connection(celery_url(url))) as connection,
                pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"),
            ):
                connection.ensure_connection(max_retries=0, timeout=10)


def warnings_of(caplog: pytest.LogCaptureFixture, url: str, role: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "mqtune.journal.server.connection"):
        connect(url, role=role).close()
    return [record.getMessage() for record in caplog.records]


def test_a_redis_without_a_password_is_warned_of_unless_only_this_machine_reaches_it(
    proxy: TlsProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    unchecked = proxy.url(ssl_cert_reqs="none", ssl_check_hostname="false").replace("@localhost", "@127.1")
    assert "is not checked" in warnings_of(caplog, unchecked, "worker")[0]
    with (
        EmbeddedServer.start(tmp_path, binary=find_binary()) as server,
        contextlib.closing(FaultyProxy(server.url)) as plain,
        contextlib.closing(connect(server.url)) as admin,
    ):
        admin.execute_command("ACL", "SETUSER", "default", "nopass")
        port = plain.url.rpartition(":")[2]
        # It is this machine, by a name that doesn't say so.
        far, near = f"redis://127.1:{port}", f"redis://127.0.0.1:{port}"

        for role in ("driver", "worker"):
            (warning,) = warnings_of(caplog, far, role)
            assert "needs no password" in warning
            assert "mqtune fleet acl" in warning
            assert warnings_of(caplog, near, role) == []
        admin.execute_command("ACL", "SETUSER", "known", "on", ">secret", "+@all", "~*", "&*")
        assert warnings_of(caplog, far.replace("//", "//known:secret@"), "driver") == []
        assert warnings_of(caplog, far, "follower") == [], "it trusts nobody"
