"""Models: from a config, from weights of another head, and what is refused."""

import json
from unittest.mock import Mock

import psutil
import pytest
import torch
import transformers
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForPreTraining,
    PreTrainedTokenizerBase,
)

from detalbert.engine import models
from detalbert.engine.attention import PACKED
from detalbert.engine.models import build_span_model, config_from_keys, load_encoder, load_weights
from detalbert.errors import UserError
from detalbert.hub import PRETRAINED, STATE_DICT
from detalbert.settings.hparams import HParams
from detalbert.squad.encoding import named_tokenizer

SHIPPED = "embedded/albert-tiny"
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
WORDS = "bert.embeddings.word_embeddings.weight"
Tokenizer = PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def tokenizer():
    return named_tokenizer(SHIPPED)


def save_bert(folder, tokenizer, cls=transformers.BertForMaskedLM):
    """Save a BERT with random weights; the model."""
    torch.manual_seed(5)
    model = cls(transformers.BertConfig(**SIZES, vocab_size=len(tokenizer)))
    model.save_pretrained(folder)
    return model


def test_keys_that_do_not_fit_are_refused(tokenizer):
    with pytest.raises(UserError, match=r"model_config\.hiden_size: unknown key; .* 'hidden_size'"):
        config_from_keys({"hiden_size": 32}, tokenizer)
    with pytest.raises(UserError, match=r"hyperparameters.model: it has 32 tokens, .* \d+ pieces"):
        build_span_model(hparams(model_config={**SIZES, "vocab_size": 32}), tokenizer)


def hparams(**keys):
    return HParams(**{"max_seq_length": 64, "seed": 0, **keys})


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers"])
def test_no_size_is_the_librarys_largest_in_silence(name, tokenizer, tmp_path):
    """ALBERT's is 4096 wide; and the depth of its shared layers is in no weight."""
    keys = {key: size for key, size in SIZES.items() if key != name}
    words = rf"^hyperparameters\.model_config\.{name}: not set; set it$"
    with pytest.raises(UserError, match=words):
        build_span_model(hparams(model_config=keys), tokenizer)

    save_bert(tmp_path, tokenizer)
    path = tmp_path / "config.json"
    keys = json.loads(path.read_text())
    del keys[name]
    path.write_text(json.dumps(keys))
    with pytest.raises(UserError, match=rf"config\.json\.{name}: not set"):
        load_weights(AutoModelForQuestionAnswering, str(tmp_path))


def test_a_model_of_random_weights_is_the_seeds(tokenizer):
    keys = {**SIZES, "model_type": "bert"}

    def build(seed):
        return build_span_model(hparams(model_config=keys, seed=seed), tokenizer)

    model = build(seed=1)
    weights = model.state_dict()[WORDS]
    assert torch.equal(build(seed=1).state_dict()[WORDS], weights)
    assert not torch.equal(build(seed=2).state_dict()[WORDS], weights)
    assert model.config._attn_implementation == PACKED
    assert model.dtype is torch.float32


def test_another_vocabulary_starts_from_scratch(tokenizer, tmp_path):
    weights = save_bert(tmp_path, tokenizer).state_dict()
    named = hparams(model=str(tmp_path))
    assert models.starts_from_scratch(hparams(model_config={}), tokenizer)
    for _ in range(2):  # the folder has no tokenizer, and then this one
        assert not models.starts_from_scratch(named, tokenizer)
        built = build_span_model(named, tokenizer).state_dict()
        assert torch.equal(built[WORDS], weights[WORDS])
        tokenizer.save_pretrained(tmp_path)

    larger = transformers.AutoTokenizer.from_pretrained(tmp_path)
    larger.add_tokens(["<another>"])
    assert models.starts_from_scratch(named, larger)
    built = build_span_model(named, larger).state_dict()
    assert built[WORDS].shape == (len(larger), 32)
    layer = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(built[layer], weights[layer])


def test_weights_that_lack_a_part_are_refused(tokenizer, tmp_path):
    model = save_bert(tmp_path, tokenizer)
    tokenizer.save_pretrained(tmp_path)
    without_a_layer = {}
    for name, weight in model.state_dict().items():
        if "layer.0.output.dense" not in name:
            without_a_layer[name] = weight.clone()
    model.save_pretrained(tmp_path, state_dict=without_a_layer)
    with pytest.raises(UserError, match=r"lack 'bert\.\S+dense\.bias' and 1 more"):
        build_span_model(hparams(model=str(tmp_path)), tokenizer)


def checkpoint(folder, model, left_out="-"):
    """A checkpoint of this package with the weights of `model`, without those named so."""
    weights = {}
    for weight_name, weight in model.state_dict().items():
        if left_out not in weight_name:
            weights[f"module.{weight_name}"] = weight
    model.config.save_pretrained(folder / PRETRAINED)
    torch.save({"models_state_dict": [weights]}, folder / STATE_DICT)
    return str(folder)


def test_a_checkpoint_of_another_head_gives_its_encoder(tokenizer, tmp_path):
    model = save_bert(tmp_path / "model", tokenizer)
    name = checkpoint(tmp_path / "checkpoint", model)
    loaded, missing = load_weights(AutoModelForQuestionAnswering, name)
    assert missing == {"qa_outputs.weight", "qa_outputs.bias"}
    expected = model.state_dict()
    for key, weight in loaded.state_dict().items():
        if key not in missing:
            assert torch.equal(weight, expected[key])


def test_a_head_of_another_task_has_as_many_labels_as_are_asked_for(tokenizer, tmp_path):
    model = save_bert(tmp_path / "model", tokenizer, BertForPreTraining)
    for name in (str(tmp_path / "model"), checkpoint(tmp_path / "checkpoint", model)):
        for head in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
            loaded, missing = load_encoder(head, name, attention=None, num_labels=5)
            assert loaded.classifier.out_features == 5
            assert missing == {"classifier.weight", "classifier.bias"}


def test_a_tied_weight_is_found_under_either_name(tokenizer, tmp_path):
    model = save_bert(tmp_path / "model", tokenizer, BertForPreTraining)
    name = checkpoint(tmp_path / "tied", model, left_out="predictions.decoder")
    loaded, missing = load_weights(BertForPreTraining, name)
    assert missing == set()
    words = model.bert.embeddings.word_embeddings.weight
    assert torch.equal(loaded.cls.predictions.decoder.weight, words)


def test_a_type_without_a_span_head_is_refused(tokenizer):
    keys = {"model_type": "vit_mae", "vocab_size": len(tokenizer)}
    no_span_head = transformers.AutoConfig.for_model(**keys)
    with pytest.raises(UserError, match=r"^hyperparameters\.model: cannot be built: "):
        models.random_model(AutoModelForQuestionAnswering, no_span_head)


def test_weights_train_in_float32_whatever_they_are_saved_in(tokenizer, tmp_path):
    model = save_bert(tmp_path / "model", tokenizer).bfloat16()
    model.save_pretrained(tmp_path / "model")
    assert "bfloat16" in str(model.config.dtype)
    for name in (str(tmp_path / "model"), checkpoint(tmp_path / "checkpoint", model)):
        loaded, _ = load_weights(AutoModelForQuestionAnswering, name)
        assert loaded.dtype is torch.float32


LARGER = "is of a larger model than its weights"
ABSURD = [
    ({"num_labels": 10**9}, "config.json.num_labels: 1000000000; give a number from 1 to 65,536"),
    ({"num_hidden_layers": 0}, "config.json.num_hidden_layers: 0; give a number from 1 to 1,000"),
    ({"hidden_size": "x"}, "config.json.hidden_size: 'x'; give a number"),
    ({"hidden_size": 8192, "intermediate_size": 8192}, LARGER),
    ({"vocab_size": 10**6}, LARGER),
    ({"max_position_embeddings": 10**9}, "its weights are larger than this machine's 9 GB of mem"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("keys", "words"), ABSURD, ids=lambda value: str(value)[:30])
def test_a_folder_of_absurd_sizes_is_refused_before_anything_is_built(
    keys, words, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(total=8e9))
    monkeypatch.setattr(psutil, "swap_memory", lambda: Mock(total=1e9))
    save_bert(tmp_path, tokenizer)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(UserError, match=words) as error:
        load_weights(AutoModelForQuestionAnswering, str(tmp_path))
    assert "\n" not in str(error.value)
