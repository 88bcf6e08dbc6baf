"""Windows of SQuAD by length and stride, beside those that are built of real questions."""

from typing import Any

import pytest

from cluster.check import check_one
from cluster.estimates.job import known_size, parse_jobs
from detalbert.errors import UserError
from detalbert.settings.hparams import parse_hparams
from detalbert.squad.windows import build_windows
from detalbert.training.sizing import WINDOW, squad_windows
from tests.cluster.planted import experiment
from tests.conftest import ROOT
from tests.fakes.questions import read_squad


@pytest.fixture(scope="module")
def examples(shared: Any) -> list[Any]:
    return [
        *read_squad(shared / "squad" / "train.json"),
        *read_squad(shared / "squad" / "dev.json"),
    ]


def test_windows_grow_as_real_ones_do(examples: list[Any], albert: Any) -> None:
    """7,547 real questions; by hand none of a short context gets more of a longer window."""
    usual = build_windows(examples, albert)
    assert usual.lengths.mean() == pytest.approx(WINDOW, rel=0.02)
    for length, stride in ((512, 128), (256, 128), (192, 64), (192, 128), (128, 64), (128, 32)):
        windows = build_windows(examples, albert, length, stride)
        ratio, tokens = squad_windows(length, stride)
        assert ratio == pytest.approx(len(windows) / len(usual), rel=0.05), (length, stride)
        real_tokens = windows.lengths.mean() / usual.lengths.mean()
        assert tokens == pytest.approx(real_tokens, rel=0.05), (length, stride)


def planned_windows(**keys: Any) -> int | None:
    config = experiment("single.yaml")
    hparams = parse_hparams({**config["hyperparameters"], **keys})
    return known_size(config, hparams).training


def test_the_known_number_is_that_of_384_tokens_that_share_128() -> None:
    assert planned_windows() == 132_198
    assert planned_windows(max_seq_length=192) == pytest.approx(1.61 * 132_198, rel=0.01)
    assert planned_windows(max_seq_length=128) is None
    config = experiment("single.yaml")
    config["hyperparameters"]["max_seq_length"] = {"type": "categorical", "vals": [384, 192]}
    sizes = [job.size.training for job in parse_jobs(config, pool=None, root=ROOT)]
    assert sizes == [132_198, planned_windows(max_seq_length=192)]


@pytest.mark.parametrize(
    "length, stride, is_refused",
    [(128, 128, True), (160, 128, True), (160, 120, False), (192, 128, False)],
)
def test_the_checker_refuses_what_cannot_be_cut(
    length: int, stride: int, is_refused: bool, examples: list[Any], albert: Any
) -> None:
    config = experiment("single.yaml")
    config["hyperparameters"] |= {"max_seq_length": length, "doc_stride": stride}
    findings = list(check_one(config, None, ROOT))
    assert [finding.key for finding in findings] == ["hyperparameters.doc_stride"] * is_refused
    try:
        build_windows(examples, albert, length, stride)
    except UserError:
        assert is_refused
    else:
        assert not is_refused
