"""The model of a step's time: its parts, and the published runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.scaling import P3, published
from benchmarks.step_time import Work, imbalance, predict
from cluster.published import PARAMETERS

GRADIENTS = 4 * PARAMETERS


@pytest.mark.parametrize("row", published().values())
def test_the_published_runs(row: dict[str, float]) -> None:
    """Those padded every window to 384 tokens, at two windows a second on one V100."""
    assert row["predicted"] == pytest.approx(row["published"], rel=0.10)


def test_a_ring_over_machines_goes_at_the_pace_of_the_network() -> None:
    assert P3.all_reduce(1, GRADIENTS) == 0
    assert P3.all_reduce(64, GRADIENTS) == pytest.approx(0.564, abs=0.005)
    assert P3.all_reduce(8, GRADIENTS) < 0.05 * P3.all_reduce(64, GRADIENTS)
    assert P3.all_reduce(64, GRADIENTS // 2) == pytest.approx(0.283, abs=0.005)


@given(
    st.lists(st.integers(1, 384), min_size=48, max_size=200),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0, 1),
)
def test_parts_make_up_the_step(lengths, slots: int, fixed: float) -> None:
    work = Work(np.array(lengths), 48, 1000)
    row = predict(work, 100.0, P3, [slots], fixed)[slots]
    parts = row["compute"] + row["uneven"] + row["all_reduce"] + row["fixed"]
    assert row["seconds"] == pytest.approx(parts)
    assert row["uneven"] >= -1e-9 and (slots > 1 or row["uneven"] == pytest.approx(0, abs=1e-9))
    assert imbalance(work, slots, steps=5) >= 1 - 1e-12
