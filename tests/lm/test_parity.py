"""The same training at every layout: initial bits, first gradients, losses, against the library."""

import math
from pathlib import Path

import pytest
import torch

from lm.layout import Layout
from tests.lm import ranks
from tests.lm.ranks import Case, Trained

pytestmark = pytest.mark.usefixtures("fork")

CASES = {
    "llama": Case("llama", steps=20),
    "tied, two rows and more a step": Case("llama", {"tie_word_embeddings": True}, per_row=1),
    "gpt_neox": Case("gpt_neox"),
    "qwen2, checkpointed": Case("qwen2", checkpointing=True),
    "gpt2": Case("gpt2"),
}
LAYOUTS = {
    "one process": Layout(),
    "shard 4": Layout(shard=4),
    "tensor 2": Layout(tensor=2),
    "shard 2 x tensor 2": Layout(shard=2, tensor=2),
    "replicate 2 x shard 2": Layout(replicate=2, shard=2),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return ranks.start(ranks.reference, 1, tmp_path_factory.mktemp("reference"), CASES)[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_the_library_does(
    name: str, reference: dict[str, Trained], tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    cases = {k: case for k, case in CASES.items() if layout.tensor == 1 or case.family != "gpt2"}
    everywhere = ranks.start(ranks.train, layout.slots, tmp_path, layout, cases)
    for case in cases:
        ours, expected = everywhere[0][case], reference[case]
        assert ours.initial.keys() == ours.gradients.keys() == expected.gradients.keys()
        for key, value in expected.initial.items():
            assert torch.equal(ours.initial[key], value), key
        for key, value in expected.gradients.items():
            assert (ours.gradients[key] - value).norm() <= 1e-5 * value.norm(), key
        assert math.isclose(ours.norm, expected.norm, rel_tol=1e-5)
        assert max(abs(a - b) for a, b in zip(ours.losses, expected.losses, strict=True)) <= 1e-4
        assert len(set(ours.losses)) == CASES[case].steps
        assert all(other[case].losses == ours.losses for other in everywhere)
