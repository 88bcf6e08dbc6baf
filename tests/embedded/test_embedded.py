"""The embedded model: what it promises, and that its command works."""

import lzma
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from embedded.pretrain import build_model, train_tokenizer
from embedded.prune import prune
from tests.conftest import ROOT
from tests.fakes.questions import world_questions

pytestmark = pytest.mark.usefixtures("fork")

FOLDER = ROOT / "embedded" / "albert-tiny"


def test_folder_is_small_and_holds_the_encoder_alone() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 2_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert not [key for key in list(weights.keys()) if "qa_outputs" in key]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_what_is_uploaded_is_the_same(name: str) -> None:
    assert lzma.decompress((FOLDER / f"{name}.xz").read_bytes()) == (FOLDER / name).read_bytes()


def test_weights_load_with_nothing_missing_but_the_head() -> None:
    model, info = AutoModelForQuestionAnswering.from_pretrained(FOLDER, output_loading_info=True)
    assert set(info["missing_keys"]) == {"qa_outputs.weight", "qa_outputs.bias"}
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    assert model.config.max_position_embeddings >= 384


def test_tokenizer_gives_segments_and_full_offsets() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.is_fast
    context, qa = next(world_questions("validation", paragraphs=1))
    encoded = tokenizer(qa["question"], context, return_offsets_mapping=True)
    segments = encoded["token_type_ids"]
    assert segments == sorted(segments) and set(segments) == {0, 1}
    tokens = encoded.tokens()
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2 and "<unk>" not in tokens
    covered = set()
    for (start, end), segment in zip(encoded["offset_mapping"], segments, strict=True):
        covered.update(range(start, end) if segment else ())
    assert covered >= {at for at, character in enumerate(context) if character != " "}


def test_any_english_text_has_pieces() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = 'In 1969 "Apollo 11" (NASA\'s 5th crewed flight) cost $355 million; 50% of that?'
    assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_pretraining_command_makes_the_same_folder_twice(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        command = "-m embedded.pretrain --steps 2 --documents 300 --output".split()
        command = [sys.executable, *command, str(tmp_path / name)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        made.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(made[0])
    AutoModelForQuestionAnswering.from_pretrained(tmp_path / "one")


def test_pruning_keeps_the_pieces_of_the_texts_and_their_vectors() -> None:
    tokenizer = train_tokenizer(seed=0, documents=300)
    model = build_model(tokenizer, seed=0)
    bare, words = tokenizer.backend_tokenizer, model.get_input_embeddings().weight.detach()
    texts = [context for context, _ in world_questions("train", paragraphs=10)]
    before = [(e.tokens, e.offsets, words[e.ids]) for e in bare.encode_batch(texts)]
    smaller = prune(model, bare, texts)
    assert model.config.vocab_size == smaller.get_vocab_size() < bare.get_vocab_size()
    words = model.get_input_embeddings().weight.detach()
    after = [(e.tokens, e.offsets, words[e.ids]) for e in smaller.encode_batch(texts)]
    for old, new in zip(before, after, strict=True):
        assert old[:2] == new[:2] and torch.equal(old[2], new[2])
    assert smaller.token_to_id("[CLS]") == bare.token_to_id("[CLS]")
    assert "<unk>" not in smaller.encode("Quite another sentence: 7 jumps over 11!").tokens
