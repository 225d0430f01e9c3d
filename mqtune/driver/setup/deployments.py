"""Chooses where the trials of a tuner run, by its argument *backend*."""

from __future__ import annotations

import os

from mqtune.backends.base import Backend
from mqtune.core.errors import ConfigurationError
from mqtune.core.timing import Timing
from mqtune.driver.setup.connect import BrokerDeployment, Deployment
from mqtune.driver.setup.options import Checkpoints, Local
from mqtune.driver.setup.own_backend import BackendDeployment, is_simulated


def deployment_of(backend: object, checkpoints: Checkpoints = Checkpoints(), timing: Timing = Timing()) -> Deployment:
    """Return the deployment for a tuner's argument *backend*.

    Args:
        backend: a broker's URL, ``Local(…)``, a backend object, or None for ``$MQTUNE_BROKER`` or else this machine.
        checkpoints: the options of checkpoints, to check the store.
        timing: the driver's intervals and time-outs.

    Raises:
        ConfigurationError: *backend* is none of these, or it can't use the given checkpoint store.
    """
    if backend is None:
        backend = os.environ.get("MQTUNE_BROKER") or Local()
    if isinstance(backend, str) and backend.strip():
        return BrokerDeployment(backend, timing=timing)
    if isinstance(backend, Local):
        return BrokerDeployment(None, local_slots=backend.slots, timing=timing)
    if isinstance(backend, BrokerDeployment):
        # ``attach`` has connected already, to read the definition.
        return backend
    if is_simulated(backend) and checkpoints.store is not None:
        raise ConfigurationError("simulated workers store no checkpoints: leave out Checkpoints(store=…)")
    if isinstance(backend, Backend) and not isinstance(backend, type):
        return BackendDeployment(backend)
    raise ConfigurationError(
        f"backend={backend!r} is not a backend; give the URL of a broker, mqtune.Local(slots=…), mqtune.Simulated(…), "
        "an object with the methods of mqtune.backends.base.Backend, or leave it out for $MQTUNE_BROKER or this machine"
    )
