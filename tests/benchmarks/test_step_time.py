"""The model of a step's time: its parts, and the published runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.step_time import Job, Network, imbalance, predict

# p3.16xlarge: NVLink inside, 25 Gbit/s between machines. albert-xxlarge: 223 M parameters.
P3 = Network(slots=8, inside=100e9, between=25e9 / 8)
GRADIENTS = 4 * 223_000_000


@pytest.mark.parametrize("slots, batch, published", [(1, 48, 2.0), (8, 48, 15.8), (64, 256, 92.75)])
def test_the_published_runs(slots: int, batch: int, published: float) -> None:
    """Those padded every window to 384 tokens, at two windows a second on one V100."""
    job = Job(np.full(132_198, 384), batch, GRADIENTS)
    row = predict(job, 2.0 * 384, P3, [slots])[slots]
    assert row["windows_per_second"] == pytest.approx(published, rel=0.10)
    assert row["uneven"] == 0


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
    job = Job(np.array(lengths), 48, 1000)
    row = predict(job, 100.0, P3, [slots], fixed)[slots]
    parts = row["compute"] + row["uneven"] + row["all_reduce"] + row["fixed"]
    assert row["seconds"] == pytest.approx(parts)
    assert row["uneven"] >= -1e-9 and (slots > 1 or row["uneven"] == pytest.approx(0, abs=1e-9))
    assert imbalance(job, slots, steps=5) >= 1 - 1e-12
