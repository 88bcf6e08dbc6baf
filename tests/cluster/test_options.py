"""Options for a run: properties of hours and dollars, and why one does not fit."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.job import read_job
from cluster.machines import FAMILIES
from cluster.options import find_front, market_pools, plan_options, priced_pool
from cluster.pools import Pool
from cluster.prices import load_prices
from cluster.published import nearest_measurement
from detalbert.settings.experiment import load
from tests.conftest import ROOT


def job_of(name, *changes):
    return read_job(load(ROOT / "configs" / f"{name}.yaml", changes), ROOT)


def planned(job, *machines):
    """Return the options of a job on these machines, by default all of us-east-1."""
    pools = market_pools("us-east-1")
    return plan_options(
        [pool for pool in pools if not machines or pool.machine in machines],
        job,
    )


@pytest.fixture(scope="module", params=["modern8", "pretrain_base", "lm_1b"])
def fitting(request):
    frame = planned(job_of(request.param))
    return frame[frame["fits"]]


def test_more_machines_of_a_kind_are_not_cheaper(fitting):
    wide = fitting[fitting["machine"].str.fullmatch("p5.48xlarge|p4de.24xlarge|g5.48xlarge")]
    groups = list(wide.groupby(["machine", "market", "efficiency"]))
    assert len(groups) > 5
    for _, same in groups:
        assert same.sort_values("slots")["dollars"].is_monotonic_increasing


def test_spot_takes_longer_at_its_price_of_an_hour(fitting):
    pairs = fitting.pivot(index=["machine", "count"], columns="market", values=["hours", "dollars"])
    assert (pairs["hours"]["spot"] > pairs["hours"]["on demand"]).all()
    # What is paid beside the work is a part of it.
    prices = pd.DataFrame(load_prices()["us-east-1"]).T
    machines = pairs.index.get_level_values("machine")
    discount = (prices["spot"] / prices["on demand"]).reindex(machines).to_numpy()
    extra = pairs["dollars"]["spot"] / pairs["dollars"]["on demand"] / discount
    assert extra.between(1, 1.5).all()


def test_the_front_is_what_nothing_beats(fitting):
    front = find_front(fitting)
    assert front["hours"].is_monotonic_decreasing
    assert front["dollars"].is_monotonic_increasing
    for option in fitting.itertuples():
        beats = (front["hours"] <= option.hours) & (front["dollars"] <= option.dollars)
        assert beats.any()


@pytest.mark.parametrize(
    ("name", "changes", "machine", "words"),
    [
        ("lm_13b", ["hyperparameters.layout.shard=8"], "g5.48xlarge", "A10G of 24 GB is too small"),
        ("modern8", [], "p6-b200.48xlarge", "no code for B200; take one of CUDA 12.8"),
        ("lm_13b", [], "p5.48xlarge", "hyperparameters.layout is of 64 processes, not 8"),
        ("single", [], "p5.48xlarge", "64 slots, and global_batch_size is 48"),
    ],
)  # fmt: skip
def test_why_an_option_does_not_fit(name, changes, machine, words):
    frame = planned(job_of(name, *changes), machine)
    reasons = frame.loc[~frame["fits"], "why"]
    assert any(words in reason for reason in reasons)
    assert frame.loc[~frame["fits"], ["hours", "dollars"]].isna().all(axis=None)
    assert (frame.loc[frame["fits"], "why"] == "").all()


@given(
    task=st.sampled_from(["fine-tuning", "pretraining", "language"]),
    gpu=st.sampled_from(sorted({gpu.name for gpu in FAMILIES.values()})),
    gpus=st.integers(1, 512),
    flops=st.floats(1e6, 1e12),
    forward=st.floats(1, 1e6),
)
def test_any_job_has_a_nearest_measurement_of_its_task(task, gpu, gpus, flops, forward):
    row = nearest_measurement(task, gpu, gpus=gpus, flops=flops, forward=forward)
    assert row.task == task
    assert 0 < row.efficiency < 1


@pytest.mark.parametrize(("slots", "machines"), [(8, 1), (2, 0.25), (None, 1)])
def test_a_pool_of_ones_own_has_the_price_of_anothers_slots_and_its_own_gpus(slots, machines):
    pool = Pool(name="home", slots=slots, gpu=FAMILIES["g5"])
    priced = priced_pool(pool, region="", priced_as=("p4d.24xlarge", "spot"))
    assert priced.gpu.name == "A10G"
    assert priced.slots == (slots or 8)
    price = load_prices()["us-east-1"]["p4d.24xlarge"]["spot"]
    assert priced.price == pytest.approx(machines * price)
    # Its whole machines are an option, whatever their slots and those of the config.
    assert priced.slots in set(plan_options([priced], job_of("modern8"))["slots"])
    assert math.isnan(priced_pool(pool, region="", priced_as=None).price)
