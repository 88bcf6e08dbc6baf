"""An exported encoder in plain transformers, and what a model of another kind is told."""

import contextlib
import itertools
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from transformers import AutoTokenizer

import predict
from detalbert.engine.safe_load import read_weights
from tests.conftest import ROOT, TINY, TINY_LM, TINY_PRETRAINING, configured
from tests.engine.trials import config_file, trial_of
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.runs import metrics, newest, refusal, train_into
from tests.older import ids_and_outputs


@pytest.fixture(scope="session")
def encoder_run(once, cache_dir):
    """Return the output directory of a pretraining."""
    values = configured(TINY_PRETRAINING, cache_dir, span_fraction=0.3)
    return once("encoder", lambda folder: train_into(folder, values)) / "out"


WAYS = ("a run", "fetched", "masked tokens alone")
UUID = "aaaaaaaa-1111-2222-3333-444444444444"


class Exported(NamedTuple):
    """An exported encoder, how it came about, and its run's output directory."""

    way: str
    run: Path
    folder: Path

    @property
    def has_all_heads(self):
        return self.way != "masked tokens alone"


@pytest.fixture(params=WAYS)
def exported(request, encoder_run, tmp_path, cache_dir, monkeypatch):
    run = model = encoder_run
    if request.param == "masked tokens alone":
        train_into(tmp_path, configured(TINY_PRETRAINING, cache_dir, sentence_order=False))
        run = model = tmp_path / "out"

    folder = tmp_path / "encoder"
    with contextlib.ExitStack() as stack:
        if request.param == "fetched":
            stack.enter_context(master_with(run, tmp_path / "storage", monkeypatch))
            model = "trial:7"
        words = ["--model", str(model), "--export", str(folder), "--license", "mit"]
        assert predict.main(words) == 0
    monkeypatch.chdir(ROOT)
    return Exported(request.param, run, folder)


@contextlib.contextmanager
def master_with(run, storage, monkeypatch):
    """Log in to a master whose trial 7 has the run's newest checkpoint."""
    checkpoint = Path(shutil.copytree(newest(run), storage / UUID))
    stored = Stored(UUID, checkpoint, f1=0.0, ended=1, scores=metrics(run)["last"])
    config = {"type": "shared_fs", "host_path": str(storage)}
    with CheckpointMaster([stored], config) as master:
        master.log_in(monkeypatch, storage.parent)
        yield


def test_transformers_gives_the_trials_logits(exported, tmp_path, cache_dir):
    """The trial reads rows of several windows, transformers each window alone."""
    has_all_heads = exported.has_all_heads
    library = load("PreTraining" if has_all_heads else "MaskedLM", exported.folder)
    keys = {"sentence_order": has_all_heads, "span_fraction": 0.3 if has_all_heads else 0.0}
    compared = 0
    with trial_of(config_file(tmp_path, TINY_PRETRAINING, cache_dir), **keys) as trial:
        trial.model.load_state_dict(read_weights(newest(exported.run) / "state_dict.pth"))
        trial.model.eval()
        trial.forward.refresh()
        for row in itertools.chain.from_iterable(trial.build_validation_data_loader()):
            with torch.no_grad():
                mlm, sop, *_ = trial.forward(row)
                bounds = row["cu_seqlens"].tolist()
                outputs = [library(**window(row, *pair)) for pair in itertools.pairwise(bounds)]

            # The trial has logits of masked tokens alone.
            name = "prediction_logits" if has_all_heads else "logits"
            logits = torch.cat([output[name][0] for output in outputs])
            torch.testing.assert_close(logits[row["masked"]], mlm, rtol=0, atol=1e-5)
            if has_all_heads:
                order = torch.cat([output.sop_logits for output in outputs])
                torch.testing.assert_close(order, sop, rtol=0, atol=1e-5)
            compared += len(mlm)
    assert compared > 150
    assert float(mlm.abs().max()) > 0.01


def window(row, begin, end):
    return {name: row[name][None, begin:end] for name in ("input_ids", "token_type_ids")}


def load(name, folder, missing=()):
    """Return an Auto class's model, which has weights for all but `missing`."""
    auto_class = getattr(transformers, f"AutoModelFor{name}" if name else "AutoModel")
    model, info = auto_class.from_pretrained(folder, output_loading_info=True)
    assert set(info["missing_keys"]) == {*missing}
    assert not info["mismatched_keys"]
    return model.eval()


@pytest.mark.soak
@torch.no_grad()
def test_transformers_4_gives_the_same_logits(encoder_run, tmp_path):
    folder = tmp_path / "encoder"
    assert predict.main(["--model", str(encoder_run), "--export", str(folder)]) == 0
    text = "The ship is in Kiel."

    ids, *logits = ids_and_outputs("AutoModelForPreTraining", folder, text, tmp_path / "4.pt")

    assert ids[0].tolist() == AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    outputs = load("PreTraining", folder)(input_ids=ids).to_tuple()
    torch.testing.assert_close(outputs, tuple(logits), rtol=0, atol=1e-5)


QUESTION = "--question a --context b"
EXPORT_FIRST = "{} is a language model; export it first: python predict.py --model {} "
STARTS = [
    ("lm", TINY_LM, EXPORT_FIRST),
    ("lm", TINY, EXPORT_FIRST),
    ("lm", TINY_PRETRAINING, EXPORT_FIRST),
    ("encoder", TINY_LM, "{} is a pretrained encoder; give a language model, or hyper"),
    ("squad", TINY_LM, "{} is a model that answers questions; give a language model, or"),
]


@pytest.fixture
def trained(run, encoder_run, local_run, lm_run):
    return {"encoder": encoder_run, "lm": lm_run, "squad": local_run.path}[run]


@pytest.mark.parametrize(("run", "config", "problem"), STARTS)
def test_a_start_from_another_kind_is_refused(
    config, problem, trained, tmp_path, capsys, cache_dir
):
    folder = newest(trained)
    path = config_file(tmp_path, config, cache_dir, model=str(folder), model_config=None)

    line = refusal(capsys, path, tmp_path / "out")

    assert f"hyperparameters.model: {problem.format(folder, folder)}" in line
    assert not (tmp_path / "out").exists()
