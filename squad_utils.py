"""Extractive question answering in one import, for notebooks and tests.

SQuAD questions -> windows -> (a model's logits) -> best spans -> answers -> EM and F1:

>>> context = "The Zanto was loaded with pottery."
>>> question = Example("1", "ships", context, "What was loaded?", (("pottery", 26),))
>>> score([question], {"1": "clay pottery"})["f1"]  # percent
66.66666666666666
>>> f1("a red clay pottery", "pottery")
0.5
"""

from detalbert.squad.answers import Answers, merge_answers, n_best_list
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.metrics import Tally, exact_match, f1, score
from detalbert.squad.windows import Example, Windows, build_windows

__all__ = [
    "Answers", "Candidates", "Example", "Tally", "Windows", "best_spans", "build_windows",
    "exact_match", "f1", "merge_answers", "n_best_list", "score",
]  # fmt: skip
