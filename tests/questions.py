"""Questions that users of other tuners have asked, in key words, and the page of the site that must be found."""

from __future__ import annotations

from typing import Final

__all__ = ["QUESTIONS"]

#: The key words, the page with the answer, and a thread of an issue tracker that asks it. The search looks for all that
#: begins with a word, so that "in" or "of" would find most of the site.
QUESTIONS: Final = (
    ("resume experiment", "questions.html", "ray-project/ray#30950"),
    ("parallel trials", "questions.html", "ray-project/ray#28292"),
    ("number of concurrent trials", "questions.html", "ray-project/ray#9812"),
    ("fractional gpu", "questions.html", "ray-project/ray#5902"),
    ("multiple machines", "questions.html", "optuna/optuna#1300"),
    ("default parameters", "questions.html", "optuna/optuna#3152"),
    ("enqueue trial", "questions.html", "optuna/optuna#5607"),
    ("warm start", "questions.html", "optuna/optuna#1930"),
    ("save best model", "questions.html", "ray-project/ray#10290"),
    ("retry failed trial", "questions.html", "optuna/optuna#6085"),
    ("stop experiment metric reached", "questions.html", "ray-project/ray#5726"),
    ("time limit", "questions.html", "ray-project/ray#10590"),
    ("early stopping patience", "questions.html", "ray-project/ray#8484"),
    ("slurm", "how-to/slurm.html", "ray-project/ray#10986"),
    ("conditional search space", "search.html", "hydra-ecosystem/hydra#2433"),
    ("parameter constraint", "questions.html", "facebook/Ax#327"),
    ("trial pending", "questions.html", "ray-project/ray#3389"),
    ("reproducible seed", "questions.html", "optuna/optuna#4412"),
    ("multiple objectives pareto", "questions.html", "optuna/optuna#3421"),
    ("memory oom", "questions.html", "optuna/optuna#752"),
    ("visualize results", "questions.html", "optuna/optuna#974"),
    ("export data frame csv", "questions.html", "optuna/optuna#2482"),
)
