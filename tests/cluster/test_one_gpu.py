"""`cluster.plan CONFIG --gpu 12GB`: whether an experiment fits one card."""

import re

import pytest

from cluster.estimates.job import parse_jobs
from cluster.plan import main
from cluster.planning.one_gpu import fit_one_gpu
from detalbert.engine.memory import OVERHEAD
from detalbert.settings.experiment import load
from tests.conftest import ROOT

FORWARD = "hyperparameters.max_tokens_per_forward"


def printed(capsys, *arguments: str) -> tuple[int, dict[str, list[str]]]:
    """The exit status, and the lines by their first words."""
    status = main(list(arguments))
    rows: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines()[1:]:
        rows.setdefault(line[:17].strip(), []).append(line[17:])
    return status, rows


def test_a_forward_that_is_too_long_is_shortened_until_it_fits(capsys):
    config = str(ROOT / "configs" / "single.yaml")
    status, rows = printed(capsys, config, "--gpu", "12GB")
    assert status == 0
    assert "fits 12 GB" in rows["in all"][0]
    assert "set" not in rows

    status, rows = printed(capsys, config, "--gpu", "8")
    assert status == 3
    assert "does not fit 8 GB" in rows["in all"][0]
    (setting,) = rows["set"]
    status, rows = printed(capsys, config, "--gpu", "8", "--set", setting)
    assert status == 0
    tokens = int(setting.partition("=")[2])
    status, _ = printed(capsys, config, "--gpu", "8", "--set", f"{FORWARD}={tokens + 384}")
    assert status == 3


def test_a_card_without_room_for_one_window_asks_for_a_smaller_model(capsys):
    status, rows = printed(capsys, str(ROOT / "configs" / "single.yaml"), "--gpu", "5")
    assert status == 3
    assert rows["largest forward"][0] == "not one window fits"
    assert "smaller model" in rows["take"][0]


@pytest.mark.parametrize(
    "name", ["single", "pretrain_base", "lm_125m", "local", "deberta", "domain"]
)
def test_the_parts_are_the_planner_s_and_add_up(name, capsys):
    path = ROOT / "configs" / f"{name}.yaml"
    _, rows = printed(capsys, str(path), "--gpu", "80")
    parts = [rows[part][0] for part in ("its states", "CUDA", "a step", "in all")]
    states, cuda, forward, total = [float(re.match(r"[\d.]+", text)[0]) for text in parts]
    assert states + cuda + forward == pytest.approx(total, abs=0.16)

    fit = fit_one_gpu(next(parse_jobs(load(path), pool=None, root=ROOT)))
    assert total == pytest.approx(fit.memory.at(fit.asked) / 2**30, abs=0.06)
    assert cuda == OVERHEAD / 2**30
    assert fit.older.per_token >= fit.memory.per_token  # padded to a grid without a flash kernel


def test_the_page_has_the_planner_s_figures():
    """Of each row of the table of what fits."""
    page = (ROOT / "docs" / "one-gpu.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) M \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 6
    for model, parameters, cells in rows:
        config = load(ROOT / "configs" / "single.yaml", [f"hyperparameters.model={model}"])
        fit = fit_one_gpu(next(parse_jobs(config, pool=None, root=ROOT)))
        assert f"{fit.parameters / 1e6:.1f}" == parameters
        tokens = [fit.largest(fit.memory, gigabytes) for gigabytes in (8, 12, 16, 24)]
        assert cells.split(" | ") == [f"{number:,}" if number else "none" for number in tokens]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["configs/deberta.yaml", "--gpu", "12", "--set", "hyperparameters.model=a/b"],
            "not known without a download",
        ),
        (
            ["configs/single.yaml", "--gpu", "x"],
            "--gpu x: not the memory of a GPU; give it in GB",
        ),
        (["configs/single.yaml", "--gpu", "12", "--any"], "not allowed with argument"),
    ],
)
def test_mistakes_are_one_line(arguments, words, capsys):
    config, *flags = arguments
    try:
        status = main([str(ROOT / config), *flags])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
