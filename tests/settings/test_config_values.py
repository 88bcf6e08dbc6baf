"""Every key of a config with values of right and wrong types: train.py refuses what cluster.check
refuses, in the same lines, by the same defaults."""

import copy
import re

import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster import check
from detalbert.errors import SectionError, UserError
from detalbert.settings import experiment
from detalbert.settings.experiment import load_schema
from tests.conftest import ROOT, TINY, TINY_LM, TINY_PRETRAINING, max_examples
from workloads import choose, parsers

BASES = [TINY, TINY_PRETRAINING, TINY_LM]
# Values as a user writes them: YAML 1.1's traps, wrong types, and the ends of ranges.
TEXTS = """
null ~ true no off y 'false' '' x '5' 0 1 -1 7.0 2.5 1e3 5e-5 0x10 1_000 .5 1:30 2024-01-01 .nan
.inf 1e30 9223372036854775807 9223372036854775808 1e308 [] {} [1] [x] [null] {a} ../x all accuracy
"""
RANGES = ["{type: const, val: 3}", "{type: log}", "{type: categorical, vals: [1, 2]}"]
VALUES = st.sampled_from(TEXTS.split() + RANGES) | st.integers().map(str)
# Of the slots, and of a search as the master runs it.
OF_A_MASTER = (
    "dealt evenly|slots need a launcher|the trial counts in|but a trial trains|ends no run"
)


def keys_of(base):
    """Every key of a config of this workload, as far as two levels."""
    keys = []
    for key, part in load_schema()["properties"].items():
        name = part.get("$ref", "").rpartition("/")[2]
        inner = load_schema()["definitions"].get(name, part).get("properties", {})
        keys += [key, *(f"{key}.{name}" for name in inner)]
    data, hyperparameters, _ = parsers(base)
    keys += [f"data.{key}" for key in data.__pydantic_fields__]
    return keys + [f"hyperparameters.{key}" for key in hyperparameters.__pydantic_fields__]


CHANGES = st.sampled_from(BASES).flatmap(
    lambda base: st.tuples(st.just(base), st.sampled_from(keys_of(base)), VALUES)
)


def refused(config):
    """The lines with which train.py refuses a config before it reads data or model."""
    try:
        values = experiment.check(config, parsers)
        choose(config).read(config, values)
    except SectionError as error:
        return [str(problem) for problem in error.problems]
    except UserError as error:
        return [str(error)]
    return []


def checked(config):
    """The lines of cluster.check. Unknown keys of hyperparameters are notes there: a modified
    train.py may have them."""
    experiment, problems = check.check_experiment(config, ROOT)
    return [str(problem) for problem in [*problems, *experiment.foreign]]


@max_examples(100)
@given(CHANGES)
def test_train_and_the_checker_answer_alike(change):
    base, key, text = change
    config = copy.deepcopy(base)
    experiment.apply_overrides(config, [f"{key}={text}"])
    lines = refused(experiment.as_a_master_reads(copy.deepcopy(config)))
    faults = checked(config)
    for line in lines:
        assert line in faults or (" a search range" in line and faults)
    if not lines and key.partition(".")[0] not in ("hyperparameters", "data"):
        assert [fault for fault in faults if not re.search(OF_A_MASTER, fault)] == []


def test_no_default_differs(tmp_path):
    """A metric of which more is better needs its direction, here as there."""
    for searcher in ({"name": "single", "metric": "f1"}, {"name": "single", "metric": "loss"}):
        config = {**copy.deepcopy(TINY), "searcher": searcher}
        faults = checked(copy.deepcopy(config))
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        assert refused(experiment.load(path)) == faults
        assert bool(faults) == (searcher["metric"] == "f1")
