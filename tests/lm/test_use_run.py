"""`predict.py` with a run of train.py: its validation again, prompts, what is refused. Texts:
greedy text, draws, whole characters, and where a text ends."""

import copy
import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import predict
from detalbert.corpus.vocabulary import train_byte_bpe
from detalbert.errors import UserError
from detalbert.inference import find
from lm.inference import complete as module
from lm.inference import perplexity
from lm.inference.complete import Sampling, complete, encode_prompt
from lm.inference.load import open_saved
from lm.windows import LmWindows
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused
from tests.fakes.runs import metrics, newest
from tests.lm.ranks import SHAPES, tiny

Capture = pytest.CaptureFixture[str]
SCORES = ("loss", "perplexity", "bits_per_byte", "baseline_bits_per_byte", "accuracy")
LENGTH = 32  # of the run's windows
UUID = "aaaaaaaa-1111-2222-3333-444444444444"


def output_of(capsys: Capture, *words: Any) -> str:
    """Run predict.py, which succeeds; its standard output."""
    capsys.readouterr()
    assert predict.main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def master_of(run: Path, folder: Path) -> CheckpointMaster:
    """Knows the checkpoint, how it was trained and what it scored."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    scores = metrics(run)["best"]
    storage = folder / "storage"
    stored = Stored(
        uuid=UUID,
        folder=storage / UUID,
        f1=0.0,
        ended=1,
        steps=scores["steps"],
        scores=scores,
        config={"data": config["data"]},
        hparams=config["hyperparameters"],
    )
    return CheckpointMaster([stored], {"type": "shared_fs", "host_path": str(storage)})


def place_model(kind: str, run: Path, folder: Path, capsys: Capture) -> str:
    """Have the run's model somewhere; what `--model` takes for it."""
    checkpoint = find.find(str(run))
    model = folder / "model"
    match kind:
        case "exported":
            output_of(capsys, "--model", checkpoint, "--export", model)
        case "moved":
            shutil.copytree(checkpoint, model)
        case "fetched":
            stored = folder / "storage" / UUID
            shutil.copytree(checkpoint, stored)
            (stored / "manifest.json").unlink()
            return "trial:7"
        case "the run":
            return str(run)
    return str(model)


@pytest.mark.parametrize("kind", ["the run", "exported", "moved", "fetched"])
def test_perplexity_is_the_validation_of_the_run(kind, lm_run, tmp_path, capsys, monkeypatch):
    """A model brings its windows along."""

    def full_windows(*arguments: Any, tails: bool) -> LmWindows:
        """A validation leaves out what fills no window."""
        return LmWindows(*arguments)

    monkeypatch.setattr(perplexity, "LmWindows", full_windows)
    expected = metrics(lm_run)["best"]
    model = place_model(kind, lm_run, tmp_path, capsys)
    text = lm_run.parent / "held.jsonl"

    with master_of(lm_run, tmp_path) as master:
        master.log_in(monkeypatch, tmp_path)
        source = open_saved(find.find(model))
        output = output_of(capsys, "--model", model, "--perplexity", text, "--json")

    scores = json.loads(output)
    assert source.hparams.max_seq_length == LENGTH
    assert source.steps == expected["steps"]
    assert source.scores["loss"] == expected["loss"]
    if kind == "moved":  # where shards and rows end is not known, and makes a difference
        assert scores["loss"] == pytest.approx(expected["loss"], rel=0.1)
    else:
        for name in SCORES:
            assert scores[name] == expected[name]
    if kind == "the run":
        table = output_of(capsys, "--model", lm_run, "--perplexity", text)
        assert f"loss                    {expected['loss']:.6g}\n" in table
        assert f"windows                 {scores['windows']}\n" in table
        assert scores["windows"] > 50


TEXTS = {
    "short": ["The ship sank."],
    "long": ["The crew swam to the shore. " * 3, "a", "Silk and tar were lost; salt came late."],
}


class Scored(NamedTuple):
    """What plain transformers computes of documents end to end, window by window."""

    losses: list[float]  # of each target
    correct: int
    text_bytes: int
    tokens: int


@torch.no_grad()
def score_with_transformers(folder: Path, texts: list[str]) -> Scored:
    """Cut the documents into windows; read each document's part of a window alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    library = AutoModelForCausalLM.from_pretrained(folder)
    tokens: list[int] = []
    documents: list[int] = []  # of each token
    for number, text in enumerate(texts):
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        tokens += ids
        documents += [number] * len(ids)

    losses = []
    correct = text_bytes = 0
    for begin in range(0, len(tokens) - 1, LENGTH):
        end = begin + LENGTH + 1
        window = torch.tensor(tokens[begin:end])
        _, lengths = torch.tensor(documents[begin:end]).unique_consecutive(return_counts=True)
        for segment in window.split(lengths.tolist()):
            targets = segment[1:]
            logits = library(segment[None]).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
            losses += loss.tolist()
            correct += int((logits.argmax(-1) == targets).sum())
            text_bytes += len(tokenizer.decode(targets, skip_special_tokens=True))  # ASCII
    return Scored(losses, correct, text_bytes, len(tokens))


@pytest.mark.parametrize("name", TEXTS)
def test_perplexity_is_of_every_token(name, lm_run, tmp_path, capsys):
    """As of plain transformers, which reads each document's part of a window alone."""
    texts = TEXTS[name]
    text_file = tmp_path / "text.jsonl"
    text_file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    folder = tmp_path / "exported"
    output_of(capsys, "--model", lm_run, "--export", folder)

    scores = json.loads(output_of(capsys, "--model", folder, "--perplexity", text_file, "--json"))

    expected = score_with_transformers(folder, texts)
    targets = len(expected.losses)
    total = math.fsum(expected.losses)
    assert expected.text_bytes < sum(map(len, texts))  # a document's first token is no target
    bits_per_byte = total / math.log(2) / expected.text_bytes
    assert scores["bits_per_byte"] == pytest.approx(bits_per_byte, rel=1e-5)
    assert scores["loss"] == pytest.approx(total / targets, rel=1e-5)
    assert scores["accuracy"] == pytest.approx(100 * expected.correct / targets)
    assert scores["windows"] == math.ceil((expected.tokens - 1) / LENGTH)
    assert (expected.tokens - 1) % LENGTH != 0  # the last window is shorter

    assert predict.main(["--model", str(folder), "--perplexity", str(text_file)]) == 0
    assert "scoring" in capsys.readouterr().err


def test_a_prompt_is_gone_on_with(lm_run, capsys):
    command = ["--model", lm_run, "--prompt", "The ship", "--max-new-tokens", "15"]
    reply = json.loads(output_of(capsys, *command, "--seed", "3", "--json"))
    assert reply["prompt"] == "The ship"
    assert reply["seed"] == 3
    assert len(reply["text"]) > 5

    line = reply["text"] + "\n"
    assert output_of(capsys, *command, "--seed", "3") == line
    assert output_of(capsys, *command, "--seed", "3") == line
    assert output_of(capsys, *command, "--seed", "4") != line


def test_what_is_refused(lm_run, tmp_path, capsys):
    latin = tmp_path / "latin.txt"
    latin.write_bytes("é".encode("latin-1"))
    mistakes: dict[str, list[Any]] = {
        "--threshold: ": ["--prompt", "a", "--threshold", "1"],
        "--top-p: 0; Input should be greater than 0": ["--prompt", "a", "--top-p", "0"],
        "--max-new-tokens: 0; Input should be greater": ["--prompt", "a", "--max-new-tokens", "0"],
        "--seed: --perplexity does without": ["--perplexity", "generated", "--seed", "1"],
        "--prompt: it is empty, and training has never shown": ["--prompt", ""],
        "the prompt has ": ["--prompt", "Ab-" * 100],
        "--perplexity: no.txt: no such file": ["--perplexity", "no.txt"],
        "--perplexity: ''; ": ["--perplexity", ""],
        "latin.txt": ["--perplexity", latin],
        "--prompt --export: give exactly one of": ["--prompt", "a", "--export", "x"],
    }
    for message, words in mistakes.items():
        refused(["--model", lm_run, *words], message, capsys)

    damaged = shutil.copytree(newest(lm_run), tmp_path / "damaged")
    (damaged / "pretrained" / "config.json").write_text("{}")
    command = ["--model", damaged, "--prompt", "a"]
    refused(command, "config.json is not as it was written", capsys)
    (damaged / "manifest.json").unlink()
    refused(command, "does not load as a language model", capsys)


GREEDY = Sampling(max_new_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_byte_bpe(["the ship sank", "the crew swam to the shore"] * 5, 300)


def make_model(family: str) -> Any:
    """A tiny model for `tokenizer`."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(tiny(family, vocab_size=300)).eval()
    for parameter in model.parameters():  # so large that no two tokens are about as likely
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("family", SHAPES)
def test_greedy_text_is_of_the_likeliest_tokens(family, tokenizer):
    """Each found by a forward pass over all before it."""
    model = make_model(family)
    end = tokenizer.eos_token_id
    ids = torch.tensor([encode_prompt(tokenizer, "the ship")])
    prompt_tokens = ids.shape[1]
    while ids.shape[1] < prompt_tokens + GREEDY.max_new_tokens and ids[0, -1] != end:
        likeliest = model(ids).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, likeliest], dim=1)
    expected = ids[0, prompt_tokens:]
    assert len(set(expected.tolist())) > 2

    text, ended = complete(model, tokenizer, "the ship", GREEDY)

    assert text == tokenizer.decode(expected, skip_special_tokens=True)
    assert ended == ("end of text" if expected[-1] == end else "max_new_tokens")


def test_draws_follow_temperature_and_top_p(tokenizer):
    model = make_model("gpt2")
    model.generation_config.repetition_penalty = 9.0  # as in the folder of a model: not used

    def draw(**values: float) -> str:
        sampling = dataclasses.replace(GREEDY, **values)
        text, _ = complete(model, tokenizer, "the ship", sampling)
        return text

    likeliest = draw()
    assert draw(temperature=1e-300) == likeliest
    assert draw(temperature=0.8, top_p=1e-9) == likeliest

    texts = [draw(temperature=2.0, top_p=1.0, seed=seed) for seed in (0, 1, 2)]
    assert draw(temperature=2.0, top_p=1.0, seed=0) == texts[0]
    assert len({*texts, likeliest}) == 4

    draw(temperature=2.0, top_p=0.8)
    used = model.generation_config
    assert used.temperature == 2.0
    assert used.top_p == 0.8
    assert used.top_k == 0  # of all tokens


def test_characters_come_whole(tokenizer, monkeypatch):
    """Tokens are bytes here: a character of three is shown with its last."""
    written = "東京 – the 🚢 sank"
    tokens = iter([*encode_prompt(tokenizer, written), tokenizer.eos_token_id])

    def force(ids: Tensor, logits: Tensor) -> Tensor:
        return torch.zeros_like(logits).index_fill(1, torch.tensor(next(tokens)), 1.0)

    monkeypatch.setattr(module, "_check", force)
    pieces: list[str] = []
    text, ended = complete(make_model("gpt2"), tokenizer, "ship ", GREEDY, pieces.append)
    assert text == written
    assert ended == "end of text"
    assert "".join(pieces) == written
    assert pieces[0] == "東"
    assert not any("\ufffd" in piece for piece in pieces)


def test_where_a_text_ends(tokenizer, monkeypatch):
    model = make_model("gpt2")
    positions = SHAPES["gpt2"]["n_positions"]
    long = Sampling(max_new_tokens=500, temperature=0)
    steps = 0

    def count(ids: Tensor, logits: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return logits

    monkeypatch.setattr(tokenizer, "_special_tokens_map", {})  # no end of text
    monkeypatch.setattr(module, "_check", count)
    _, ended = complete(model, tokenizer, "the ship", long)
    assert ended == "positions"
    assert steps == positions - len(encode_prompt(tokenizer, "the ship")) + 1

    with pytest.raises(UserError, match="the prompt has .* tokens, and the model 64 positions"):
        complete(model, tokenizer, "x" * (positions + 1), long)

    steps = 0
    _, ended = complete(model, tokenizer, "x" * positions, long)
    assert ended == "positions"
    assert steps == 1


def test_prompts_that_are_odd(tokenizer):
    end = tokenizer.eos_token_id
    assert encode_prompt(tokenizer, "") == [end]
    assert end not in encode_prompt(tokenizer, "a<|endoftext|>b")
    with pytest.raises(UserError, match="not UTF-8"):
        encode_prompt(tokenizer, "\udce9")

    without_end = copy.deepcopy(tokenizer)
    without_end.eos_token = None
    with pytest.raises(UserError, match="prompt is empty"):
        encode_prompt(without_end, "")


def test_a_model_that_diverged_is_refused(tokenizer):
    diverged = make_model("llama")
    diverged.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="diverged"):
        complete(diverged, tokenizer, "a", Sampling())
