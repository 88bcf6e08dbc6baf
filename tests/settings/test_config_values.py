"""Every key of a config with values of right and wrong types: train.py and cluster.check refuse or
accept alike, in the same line, and what train.py accepts it can use."""

import copy
import dataclasses
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cluster import check
from detalbert.errors import UserError
from detalbert.settings import experiment, schema
from detalbert.training.controller import Controller
from tests.conftest import ROOT, TINY, TINY_LM, TINY_PRETRAINING, configured, max_examples
from tests.fakes.runs import only_error, run
from workloads import TABLE, choose

BASES = [TINY, TINY_PRETRAINING, TINY_LM]
# Values as a user writes them: YAML 1.1's traps, wrong types, and the ends of ranges.
TEXTS = (
    """
null ~ true false no off y 'false' 'no' 'true' '' ' ' x '5' 0 1 -1 3 7.0 2.5 1e3 5e-5 0x10 1_000 010
.5 +1 1:30 2024-01-01 .nan .inf -.inf 1e30 -1e30 9e18 9223372036854775807 9223372036854775808
100000 1000000000 1e308 1e-320 [] {} [1] [x] [null] {a:1} [[]] [{}]
""".split()
    + [
        "{a: 1}",
        "{type: const, val: 3}",
        "{type: const}",
        "{type: log}",
        "{type: int, minval: 1, maxval: 2}",
        "{type: categorical, vals: [1, 2]}",
        '"a\\0b"',
        '"a\\nb"',
        "albert-tiny",
        "../x",
        "all",
        "random",
        "adaptive_asha",
    ]
)


def schema_keys(node: dict[str, Any], path: str = "") -> list[str]:
    """Every dotted key of the experiment's schema."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        node = schema.load_schema(schema.EXPERIMENT)["definitions"][name]
    keys = []
    for part in [node, *node.get("allOf", [])]:
        if "$ref" in part and part is not node:
            keys += schema_keys(part, path)
        for key, inner in part.get("properties", {}).items():
            keys += [f"{path}{key}", *schema_keys(inner, f"{path}{key}.")]
    return keys


SIZES = "num_hidden_layers hidden_size num_attention_heads num_key_value_heads vocab_size"
SIZES += " num_hidden_groups inner_group_num max_position_embeddings hidden_act type_vocab_size"
MODEL_KEYS = [f"hyperparameters.model_config.{key}" for key in SIZES.split()]
KEYS = sorted({*schema_keys(schema.load_schema(schema.EXPERIMENT))})


def keys_of(base: dict[str, Any]) -> list[str]:
    """Every key of a config of this workload; those of our own sections as often as the others."""
    parsers = resolve_name(
        next(row for row in TABLE if resolve_name(row.workload) is choose(base)).parsers
    )
    own = []
    for section, parser in (("hyperparameters", parsers.hyperparameters), ("data", parsers.data)):
        own += [f"{section}.{field.name}" for field in dataclasses.fields(parser.args[0])]
    return own + MODEL_KEYS


changes = st.integers(0, len(BASES) - 1).flatmap(
    lambda number: st.tuples(
        st.just(number),
        st.sampled_from(KEYS) | st.sampled_from(keys_of(BASES[number])),
        st.sampled_from(TEXTS)
        | st.integers().map(str)
        | st.floats(allow_nan=False).map(repr)
        | st.text(st.characters(exclude_characters="/"), max_size=5).map(yaml.safe_dump),
    )
)


def reading(config: dict[str, Any]) -> str | None:
    """The line with which train.py refuses a config before it reads data or model."""
    try:
        experiment.check_sections(config)
        workload = choose(config)
        values = experiment.single_values(config["hyperparameters"])
        workload.read(config, values)
    except UserError as error:
        return str(error)
    return None


def checked(config: dict[str, Any]) -> list[str]:
    """The lines of cluster.check, but for those of what a local run does without. Unknown keys of
    hyperparameters are a warning there: a modified train.py may have them."""
    findings = check.check_one(config, None, ROOT)
    faults = [f for f in findings if not f.warning or f.key.startswith("hyperparameters.")]
    lines = [f"{fault.key}: {fault.detail}" for fault in faults]
    if schema.at(config, "searcher.smaller_is_better") is None:  # a master's default is true
        lines = [line for line in lines if not line.startswith("searcher.smaller_is_better: ")]
    return [line for line in lines if not OF_A_MASTER.search(line)]


# The slots of the config, a search as the master runs it, and what a master has no default for.
OF_A_MASTER = re.compile(
    "windows cannot be dealt evenly to|slots need a launcher|the trial counts in batches alone"
    "|but a trial trains|ends no run of this package|^(entrypoint|searcher[.].*): missing"
)


class Reached(Exception):
    """A run has come to its first step."""


@pytest.fixture
def files(tmp_path: Path, cache_dir: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.yaml" for number in range(len(BASES))]
    for path, base in zip(paths, BASES, strict=True):
        path.write_text(yaml.safe_dump(configured(base, cache_dir)))
    return paths


@pytest.mark.usefixtures("fork")
def test_train_and_the_checker_answer_alike(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def reach(self: Controller) -> None:
        raise Reached

    monkeypatch.setattr(Controller, "run", reach)
    # A drawn `cache_dir` is made here, not in the checkout.
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    (here / "embedded").symlink_to(ROOT / "embedded")
    monkeypatch.chdir(here)

    @max_examples(100)
    @given(changes)
    def answer_alike(change: tuple[int, str, str]) -> None:
        number, key, text = change
        try:
            config = experiment.load(files[number], [f"{key}={text}"])
        except UserError:
            return
        faults = checked(copy.deepcopy(config))
        refused = reading(copy.deepcopy(config))
        capsys.readouterr()
        if refused:
            assert refused in faults or (" a search range" in refused and faults)
            return
        try:
            status = run(files[number], tmp_path / "out", "--set", f"{key}={text}")
        except Reached:
            assert not faults
            return
        assert status in (2, 4)
        only_error(capsys.readouterr().err)

    answer_alike()
