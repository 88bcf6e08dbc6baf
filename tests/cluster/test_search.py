"""A search drops trials; each asks the master for its own state, and ends."""

import pytest

from tests.cluster.conftest import LAUNCHED, finished, steps_of
from tests.cluster.container import Trial

SEARCHED = {"max_steps": 60, "checkpoint_period": 5000}
SEARCHED |= {"validation_period": 6, "reporting_period": 10}


TRIALS = [(SEARCHED, 1), ({**SEARCHED, "entrypoint": LAUNCHED}, 2)]


@pytest.mark.parametrize(("trial", "slots"), TRIALS, indirect=["trial"])
def test_a_trial_that_its_search_drops_ends_with_a_checkpoint(trial: Trial, slots: int) -> None:
    """It asks one step after the validation, and two."""
    trial.config["searcher"].update(name="adaptive_asha", max_trials=2, max_time=60)
    with trial.master(slots=(slots,), dropped_at=6) as master:
        done = trial.run(master)
        finished(done, master)
    assert [report["steps"] for report in master.reports("validation")] == [6]
    assert steps_of(master.checkpoints)[-1] == 8
    assert master.acknowledged == 0
    said = [x for x in (done.stdout + done.stderr).splitlines() if "the search ends this" in x]
    assert len(said) == 1 and "after step 8 (STATE_STOPPING_COMPLETED)" in said[0]


@pytest.mark.parametrize("trial", [SEARCHED], indirect=True)
def test_a_search_whose_master_does_not_answer_goes_on(trial: Trial) -> None:
    trial.config["searcher"].update(name="adaptive_asha", max_trials=2, max_time=60)
    with trial.master(dropped_at=6) as master:
        master.trial_faults = [500, "cut"] * 50
        done = trial.run(master)
        finished(done, master)
    assert steps_of(master.checkpoints)[-1] == 60
    assert len(master.trial_faults) < 90
    assert (done.stdout + done.stderr).count("does not say this trial's state") == 1
