"""Every config in configs/: the published arithmetic. That all else is right says test_check."""

import jsonschema
import pytest

from cluster.experiment import parse_experiment
from detalbert.settings.experiment import EXPERIMENT, load_schema
from detalbert.settings.hparams import parse_hparams
from pretrain.hparams import parse_pretrain_hparams
from tests.cluster.planted import experiment
from tests.conftest import ROOT

WINDOWS = 132_198  # of the published runs


def hparams_of(name):
    return parse_hparams(experiment(name)["hyperparameters"])


@pytest.mark.parametrize(
    ("name", "slots", "batch", "rate", "steps", "warmup"),
    [
        ("single.yaml", 1, 48, 5e-5, 5509, 551),
        ("distributed8.yaml", 8, 48, 5e-5, 5509, 551),
        ("distributed64.yaml", 64, 256, 2e-4, 1033, 103),
        ("modern8.yaml", 8, 256, 2e-4, 1033, 103),
        ("modern64.yaml", 64, 256, 2e-4, 1033, 103),
    ],
)
def test_published_arithmetic(name, slots, batch, rate, steps, warmup):
    hparams = hparams_of(name)
    assert experiment(name)["resources"]["slots_per_trial"] == slots
    assert hparams.global_batch_size == batch
    assert hparams.epochs == 2
    assert hparams.learning_rate() == pytest.approx(rate, rel=1e-12)
    assert hparams.length(WINDOWS)[:2] == (steps, warmup)

    # The header of the file has the same figures.
    header, _, _ = (ROOT / "configs" / name).read_text().partition("\nname:")
    rate_text = f"{rate:.1e}".replace("e-0", "e-")
    for figure in (f"{steps:,}", str(warmup), str(batch), rate_text):
        assert figure in header, f"{figure} is not in the header of {name}"
    assert "Published" in header
    assert f"det experiment create configs/{name} ." in header


@pytest.mark.parametrize("size", ["base", "large"])
def test_published_arithmetic_of_pretraining(size):
    hparams = parse_pretrain_hparams(experiment(f"pretrain_{size}.yaml")["hyperparameters"])
    assert hparams.length(10**6)[:2] == (125_000, 3_125)
    assert hparams.learning_rate() == pytest.approx(0.00176, rel=1e-12)
    assert (hparams.global_batch_size, hparams.max_seq_length) == (4096, 512)
    assert (hparams.size, hparams.optimizer) == (size, "lamb")


def test_64_slots_differ_from_8_in_what_the_study_changed():
    small = experiment("distributed8.yaml")
    large = experiment("distributed64.yaml")

    changed = set()
    for section in ("hyperparameters", "resources", "data", "searcher"):
        for key in small[section].keys() | large[section].keys():
            if small[section].get(key) != large[section].get(key):
                changed.add(key)

    hparams = {"global_batch_size", "lr_scale", "optimizer", "checkpoint_period", "spot_notice"}
    assert changed == hparams | {"slots_per_trial", "resource_pool"}
    assert large["hyperparameters"]["optimizer"] == "radam"


def test_the_search_counts_in_the_steps_that_a_trial_trains():
    config = experiment("lr_search.yaml")
    searcher = config["searcher"]
    hyperparameters = config["hyperparameters"]
    assert searcher["max_time"] == hyperparameters["max_steps"]
    for power in range(searcher["max_rungs"]):
        rung = searcher["max_time"] // int(searcher["divisor"]) ** power
        assert rung % hyperparameters["validation_period"] == 0
    read, _ = parse_experiment(config, ROOT)
    assert {trial.global_batch_size for trial in read.trials} == {48, 128, 256, 384, 512}
    assert {trial.lr_scale for trial in read.trials} == {0.5, 1.0}
    assert hyperparameters["lr_scale"]["minval"] < 0.75 < hyperparameters["lr_scale"]["maxval"]


def test_the_schema_itself():
    jsonschema.Draft7Validator.check_schema(load_schema())
    for path in ROOT.glob("configs/*.yaml"):  # to editors
        first, *_ = path.read_text().splitlines()
        name = first.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / name).resolve() == EXPERIMENT
