"""Determined's own saving of a sharded model, which would lose all parts but the chief's."""

from pathlib import Path

import pytest

from detalbert.engine.handover import Unsharded
from detalbert.errors import UserError
from lm.layout import Layout, make_mesh
from lm.model import build_model
from tests.lm.ranks import CPU, start, tiny

pytestmark = pytest.mark.usefixtures("fork")


def refused(layout: Layout) -> str:
    """What is said when Determined's loop is about to save a model at `layout`."""
    model = build_model(tiny("llama"), make_mesh(layout, CPU), seed=7)
    try:
        Unsharded(model).on_checkpoint_save_start({})
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout, split", [(Layout(1, 2, 1), True), (Layout(2, 1, 1), False)])
def test_a_model_in_parts_is_not_saved_as_a_whole(
    tmp_path: Path, layout: Layout, split: bool
) -> None:
    for said in start(refused, 2, tmp_path, layout):
        assert ("is split over processes and would be saved in part" in said) == split
