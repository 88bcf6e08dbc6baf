"""The tables of metrics: what is charted and logged of each workload, and in which order."""

import lm.trial
import model_def
import pretrain.trial
from detalbert.settings.metric import charted_names, logged_names


def test_the_log_has_the_most_important_first() -> None:
    expected = "exact f1 HasAns_f1 NoAns_exact loss best_f1 HasAns_exact best_exact"
    assert logged_names(model_def.METRICS) == tuple(expected.split())
    expected = "loss mlm_accuracy sop_accuracy span_accuracy"
    assert logged_names(pretrain.trial.METRICS) == tuple(expected.split())
    expected = "loss bits_per_byte baseline_bits_per_byte accuracy perplexity"
    assert logged_names(lm.trial.METRICS) == tuple(expected.split())


def test_what_never_moves_has_no_chart() -> None:
    assert "baseline_bits_per_byte" not in charted_names(lm.trial.METRICS)
    assert "total" not in charted_names(model_def.METRICS)
