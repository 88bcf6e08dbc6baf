"""Encoders of other families end to end: ranks, cuts, export, fine-tuning from the result."""

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, pipeline

import predict
from detalbert.engine.safe_load import read_weights
from tests.conftest import TINY_PRETRAINING, configured, in_soak, settings
from tests.fakes.masked import FAMILIES, make_tokenizer
from tests.fakes.runs import cut_and_go_on, metrics, newest, run
from tests.same_bits import differences

PACKED_AND_PADDED = ["modernbert", "deberta-v2"]


def config_of(family, folder, cache_dir, **hparams):
    """Write a config that pretrains the family from random weights, with its own tokenizer."""
    tokenizer = folder / "tokenizer"
    make_tokenizer(FAMILIES[family].tokenizer).save_pretrained(tokenizer)
    config = configured(TINY_PRETRAINING, cache_dir, optimizer="adamw", masked_fraction=0.3)
    config["hyperparameters"] |= {"model_config": FAMILIES[family].keys, **hparams}
    config["data"]["tokenizer"] = str(tokenizer)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def weights_of(out):
    return read_weights(newest(out) / "state_dict.pth")


@pytest.mark.soak
@pytest.mark.parametrize("family", PACKED_AND_PADDED)
def test_two_ranks_compute_what_one_does(family, tmp_path, cache_dir, train):
    """In other micro-batches: the loss is a mean over the masked tokens of the global batch."""
    keys = {name: 0.0 for name in FAMILIES[family].keys if "dropout" in name}
    shape = FAMILIES[family].keys | keys
    config = config_of(family, tmp_path, cache_dir, max_steps=4, model_config=shape)
    assert run(config, tmp_path / "one") == 0
    small = settings(max_tokens_per_forward=128)
    done = train("--config", config, "--output-dir", tmp_path / "two", *small, processes=2)
    assert done.returncode == 0, done.stderr

    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], rtol=1e-3, atol=2e-5)
    losses = [metrics(tmp_path / name)["best"]["loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("family", PACKED_AND_PADDED)
def test_a_cut_run_ends_in_the_uncut_bits(family, tmp_path, cache_dir, monkeypatch):
    config = config_of(family, tmp_path, cache_dir, reporting_period=1, num_workers=0)
    assert run(config, tmp_path / "uncut") == 0
    cut_and_go_on(config, tmp_path / "cut", monkeypatch, at=5)
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []


@pytest.mark.parametrize("family", ["modernbert", in_soak("mpnet")])
def test_export_fill_mask_and_fine_tuning(
    family,
    tmp_path,
    cache_dir,
    tiny_config,
    capsys,
):
    config = config_of(family, tmp_path, cache_dir)
    assert run(config, tmp_path / "out") == 0
    assert "masked_lm" not in capsys.readouterr().err
    checkpoint = newest(tmp_path / "out")
    encoder = tmp_path / "encoder"
    assert predict.main(["--model", str(tmp_path / "out"), "--export", str(encoder)]) == 0

    # The export is the model, for every class of the family.
    model, info = AutoModelForMaskedLM.from_pretrained(encoder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, weight in weights_of(tmp_path / "out").items():
        assert torch.equal(model.state_dict()[name], weight)
    assert model.config.architectures == [type(model).__name__]
    mask = make_tokenizer(FAMILIES[family].tokenizer).mask_token
    assert f'("Returns a {mask} of names.")' in (encoder / "README.md").read_text()
    guesses = pipeline("fill-mask", str(encoder))(f"The ship was {mask} with tar.")
    assert len(guesses) == 5

    # Pretraining goes on with the model's own tokenizer; fine-tuning from both folders.
    words = settings(model=str(encoder), model_config=None, max_steps=2)
    words += ["--set", "data.tokenizer=null"]
    assert run(config, tmp_path / "more", *words) == 0
    tuning = yaml.safe_load(tiny_config.read_text())
    del tuning["hyperparameters"]["model_config"]
    del tuning["data"]["tokenizer"]
    tiny_config.write_text(yaml.safe_dump(tuning))
    for folder in (checkpoint, encoder):
        limits = settings(max_seq_length=64, doc_stride=16, max_query_length=24, max_steps=5)
        out = tmp_path / f"squad-{folder.name}"
        assert run(tiny_config, out, *settings(model=str(folder)), *limits) == 0
        assert "from random weights" not in capsys.readouterr().err
