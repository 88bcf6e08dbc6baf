"""Extractive question answering in one import, for notebooks and tests.

SQuAD questions -> windows -> (a model's logits) -> best spans -> answers -> EM and F1:

>>> import torch
>>> context = "The Zanto was loaded with pottery."
>>> question = Example("1", "ships", context, "What was loaded?", (("pottery", 26),))
>>> windows = build_windows([question], named_tokenizer("embedded/albert-tiny"))
>>> row = {name: torch.from_numpy(column) for name, column in windows.pack([0]).items()}
>>> answer = row["start_positions"], row["end_positions"]  # the tokens of "pottery"
>>> logits = [torch.zeros(len(row["input_ids"])).index_fill(0, token, 5.0) for token in answer]
>>> candidates = best_spans(*logits, row, n_best_size=20, max_answer_length=30)
>>> answers = merge_answers([question], windows, [candidates])
>>> answers.predictions["1"].strip(), answers.null_odds["1"]
('pottery', -10.0)
>>> score([question], {"1": "clay pottery"})["f1"]  # percent
66.66666666666666
"""

from detalbert.squad.answers import Answers, merge_answers, n_best_list
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.encoding import named_tokenizer
from detalbert.squad.example import Example
from detalbert.squad.metrics import exact_match, f1, score
from detalbert.squad.windows import Windows, build_windows

__all__ = ["Answers", "Candidates", "Example", "Windows", "best_spans", "build_windows"]
__all__ += ["exact_match", "f1", "merge_answers", "n_best_list", "named_tokenizer", "score"]
