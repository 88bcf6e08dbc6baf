"""A search drops trials; each asks the master for its own state, and ends."""

from types import SimpleNamespace

import determined
import pytest

from detalbert.training.schedule import MasterStops, Schedule
from tests.cluster.conftest import LAUNCHED, steps_of
from tests.fakes.master import TOKEN, FakeMaster

SEARCHED = {
    "max_steps": 60,
    "validation_period": 6,
    "reporting_period": 5,
    "checkpoint_period": 5000,
    "entrypoint": LAUNCHED,
}


@pytest.mark.parametrize("trial", [SEARCHED], indirect=True)
def test_a_trial_of_two_slots_that_its_search_drops_ends_with_a_checkpoint(trial):
    """Launched by Determined's launcher. It asks one step after the validation, and two."""
    trial.config["searcher"].update(name="adaptive_asha", max_trials=2, max_time=60)
    with trial.master(slots=(2,), dropped_at=6) as master:
        done = trial.run(master)

    assert [report["steps"] for report in master.reports("training")] == [5, 6, 8]
    assert [report["steps"] for report in master.reports("validation")] == [6]
    assert steps_of(master.checkpoints) == [6, 8]
    assert master.acknowledged == 0
    assert "[rank=0] INFO: step 5/60  " in done.stderr
    assert "Setting OMP_NUM_THREADS" not in done.stderr  # torchrun's banner
    lines = (done.stdout + done.stderr).splitlines()
    (line,) = [line for line in lines if "the search ends this" in line]
    assert "after step 8 (STATE_STOPPING_COMPLETED)" in line


def test_a_search_whose_master_does_not_answer_goes_on(monkeypatch, caplog):
    alone = SimpleNamespace(rank=0, broadcast=lambda state: state)
    preempt = SimpleNamespace(should_preempt=lambda acknowledge: False)
    context = SimpleNamespace(distributed=alone, _core=SimpleNamespace(preempt=preempt))
    hparams = SimpleNamespace(
        validation_period=6, reporting_period=10, checkpoint_period=99, spot_notice=False
    )
    stops = MasterStops(context, searched=True)
    schedule = Schedule(hparams, context.distributed, stops)
    with FakeMaster(dropped_at=6) as master:
        info = SimpleNamespace(master_url=master.url, trial=SimpleNamespace(trial_id=11))
        monkeypatch.setattr(determined, "get_cluster_info", lambda: info)
        monkeypatch.setenv("DET_SESSION_TOKEN", TOKEN)
        monkeypatch.setenv("DET_USER", "determined")
        master.metrics = [{"group": "validation", "steps": 6, "metrics": {"f1": 1.0}}]
        master.trial_faults = [500, "cut"]

        # Asked at steps 7 and 8, the master answers neither.
        for step in (7, 8, 9):
            assert schedule.at(step) == set()
        assert schedule.at(10) == {"report"}
        assert master.trial_faults == []
        assert not schedule.stops()

        assert schedule.at(14) == {"report", "stop"}
        assert schedule.stops()
    assert caplog.text.count("does not say this trial's state") == 1
