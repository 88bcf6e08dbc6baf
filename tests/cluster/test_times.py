"""The parts of a run's time that wait for the processor's cores, beside arithmetic by hand."""

import dataclasses
import re

import pytest

from cluster.estimates.times import CORES, LOADING, time_parts
from tests.cluster.test_estimate import estimated


@pytest.mark.parametrize("config", ["modern64", "modern8"])
def test_the_loader_s_row_is_the_windows_that_a_slot_trains_on(config: str) -> None:
    answer = estimated(config, "master-aws-modern.yaml")
    parts = {part.name: part for part in time_parts(answer)}
    batch = answer.hparams.global_batch_size
    slots = answer.slots.number

    # A step of its batch takes so long: each slot trains on so many windows a second.
    trained = batch / slots / answer.step.seconds
    loaded = LOADING * CORES
    shown, of = re.match(r"([\d.,]+) windows/s a slot of ([\d,]+)", parts["loader"].how).groups()
    assert float(shown.replace(",", "")) == pytest.approx(trained, rel=0.01)
    assert float(of.replace(",", "")) == loaded
    assert trained < loaded and parts["loader"].seconds == 0


def test_a_model_that_trains_faster_than_cores_load_waits_for_them() -> None:
    answer = estimated("modern8", "master-aws-modern.yaml")
    fast = answer.step._replace(compute=1e-6, inside=0.0, plain=0.0, efa=0.0)
    answer = dataclasses.replace(answer, step=fast)
    parts = {part.name: part for part in time_parts(answer)}

    length = answer.job.length
    assert length is not None
    windows = length.steps * answer.hparams.global_batch_size
    seconds = windows / answer.slots.number / (LOADING * CORES)
    # The products themselves go on meanwhile.
    assert parts["loader"].seconds == pytest.approx(seconds, rel=0.01)
