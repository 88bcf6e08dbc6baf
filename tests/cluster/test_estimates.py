"""Memory and seconds per step: the sizes of models, and the published runs."""

import pytest
import torch
from transformers import AlbertConfig, AlbertForQuestionAnswering

from cluster import estimates, machines
from tests.conftest import ROOT


def test_shapes_count_the_parameters_of_the_library() -> None:
    for size, config in estimates.KNOWN_CONFIGS.items():
        if "xlarge" in size:
            continue  # the same formula; building them takes seconds
        with torch.device("meta"):
            model = AlbertForQuestionAnswering(AlbertConfig(**config))
        exact = sum(p.numel() for p in model.parameters())
        shape = estimates.model_shape({"model": size}, ROOT)
        assert shape.parameters == pytest.approx(exact, rel=1e-3)
    tiny = estimates.model_shape({"model": "embedded/albert-tiny"}, ROOT)
    assert (tiny.hidden_size, tiny.num_hidden_layers) == (128, 4)
    assert estimates.model_shape({"model": "bert-base-uncased"}, ROOT) is None


def test_estimates_of_the_published_runs() -> None:
    shape = estimates.model_shape({"model": "albert/albert-xxlarge-v2"}, ROOT)
    v100, h100 = machines.FAMILIES["p3"], machines.FAMILIES["p5"]
    # Published: 92.75 windows a second on 64 V100, so 2.76 s for 256.
    assert estimates.seconds_per_step(shape, v100, 64, 256, 384) == pytest.approx(2.76, abs=0.01)
    assert 1024 < estimates.largest_token_budget(shape, v100, 64, half=True) < 4096
    assert estimates.largest_token_budget(shape, v100, 1, half=False) < 4096
    assert estimates.largest_token_budget(shape, h100, 8, half=True) > 8192
