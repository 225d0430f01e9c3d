"""``mqtune tune``: tunes a program, given a command line or a file of a W&B sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.cli.tune.domains import DOMAINS as DOMAINS, domain_of as domain_of
    from mqtune.cli.tune.plan import Options as Options, Plan as Plan
    from mqtune.cli.tune.verb import command as command
    from mqtune.cli.tune.wandb_file import read_sweep as read_sweep
    from mqtune.cli.tune.words import Words as Words

__getattr__ = facade_of(
    __name__,
    {
        "domains": ("DOMAINS", "domain_of"),
        "plan": ("Options", "Plan"),
        "verb": ("command",),
        "wandb_file": ("read_sweep",),
        "words": ("Words",),
    },
)
