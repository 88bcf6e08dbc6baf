"""`predict.py` with a run of train.py: its validation again, prompts, what is refused. Texts:
greedy text, draws, whole characters, and where a text ends."""

import copy
import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import predict
from detalbert.corpus.learn_tokenizer import train_byte_bpe
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

SCORES = ("loss", "perplexity", "bits_per_byte", "baseline_bits_per_byte", "accuracy")


def say(capsys: Any, *words: Any) -> str:
    capsys.readouterr()
    assert predict.main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["the run", "exported", "moved", "fetched"])
def test_perplexity_is_the_validation_of_the_run(kind, lm_run, tmp_path, capsys, monkeypatch):
    """A model brings its windows along. A validation leaves out what fills no window."""
    monkeypatch.setattr(perplexity, "LmWindows", lambda *given, tails: LmWindows(*given))
    checkpoint, expected = find.find(str(lm_run)), metrics(lm_run)["best"]
    model: Any = lm_run if kind == "the run" else tmp_path / "model"
    if kind == "exported":
        say(capsys, "--model", checkpoint, "--export", model)
    elif kind == "moved":
        shutil.copytree(checkpoint, model)
    elif kind == "fetched":
        shutil.copytree(checkpoint, tmp_path / "storage" / UUID)
        (tmp_path / "storage" / UUID / "manifest.json").unlink()
        model = "trial:7"
    with master_of(lm_run, tmp_path) as master:
        master.log_in(monkeypatch, tmp_path)
        folder = find.find(str(model))
        text = lm_run.parent / "held.jsonl"
        scores = json.loads(say(capsys, "--model", model, "--perplexity", text, "--json"))
    source = open_saved(folder)
    assert source.hparams.max_seq_length == 32 and source.steps == expected["steps"]
    assert source.scores["loss"] == expected["loss"]
    if kind == "moved":  # where shards and rows end is not known, and makes a difference
        assert scores["loss"] == pytest.approx(expected["loss"], rel=0.1)
    else:
        assert {name: scores[name] for name in SCORES} == {name: expected[name] for name in SCORES}
    if kind == "the run":
        shown = say(capsys, "--model", lm_run, "--perplexity", text)
        assert f"loss                    {expected['loss']:.6g}\n" in shown
        assert f"windows                 {scores['windows']}\n" in shown and scores["windows"] > 50


TEXTS = {
    "short": ["The ship sank."],
    "long": ["The crew swam to the shore. " * 3, "a", "Silk and tar were lost; salt came late."],
}


@pytest.mark.parametrize("name", TEXTS)
def test_perplexity_is_of_every_token(name, lm_run, tmp_path, capsys):
    """As of plain transformers, which reads each document's part of a window alone."""
    text, folder = tmp_path / "text.jsonl", tmp_path / "exported"
    text.write_text("\n".join(json.dumps({"text": each}) for each in TEXTS[name]))
    say(capsys, "--model", lm_run, "--export", folder)
    scores = json.loads(say(capsys, "--model", folder, "--perplexity", text, "--json"))
    tokenizer, library = (k.from_pretrained(folder) for k in (AutoTokenizer, AutoModelForCausalLM))
    documents = [[*tokenizer(each)["input_ids"], tokenizer.eos_token_id] for each in TEXTS[name]]
    tokens = [(number, token) for number, ids in enumerate(documents) for token in ids]
    losses, right, text_bytes = [], 0, 0
    for begin in range(0, len(tokens) - 1, 32):
        for _, piece in itertools.groupby(tokens[begin : begin + 33], key=lambda pair: pair[0]):
            ids = torch.tensor([token for _, token in piece])
            with torch.no_grad():
                logits = library(ids[None]).logits[0, :-1]
            losses += torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none").tolist()
            right += int((logits.argmax(-1) == ids[1:]).sum())
            text_bytes += len(tokenizer.decode(ids[1:], skip_special_tokens=True))  # ASCII
    assert text_bytes < sum(map(len, TEXTS[name]))  # a document's first token is no target
    bits = math.fsum(losses) / math.log(2) / text_bytes
    assert scores["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert scores["windows"] == -(-(len(tokens) - 1) // 32) and (len(tokens) - 1) % 32
    assert scores["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert scores["accuracy"] == pytest.approx(100 * right / len(losses))
    assert predict.main(["--model", str(folder), "--perplexity", str(text)]) == 0
    assert "scoring: " in capsys.readouterr().err


UUID = "aaaaaaaa-1111-2222-3333-444444444444"


def master_of(run: Path, folder: Path) -> CheckpointMaster:
    """Knows the checkpoint, how it was lm_run and what it scored."""
    config, storage = yaml.safe_load((run / "config.yaml").read_text()), folder / "storage"
    scores = metrics(run)["best"]
    known: dict[str, Any] = {"steps": scores["steps"], "scores": scores}
    known |= {"config": {"data": config["data"]}, "hparams": config["hyperparameters"]}
    stored = Stored(UUID, storage / UUID, 0.0, 1, **known)
    return CheckpointMaster([stored], {"type": "shared_fs", "host_path": str(storage)})


def test_a_prompt_is_gone_on_with(lm_run, capsys, monkeypatch):
    words = ["--model", lm_run, "--prompt", "The ship", "--max-new-tokens", "15", "--seed", "3"]
    reply = json.loads(say(capsys, *words, "--json"))
    assert reply["prompt"] == "The ship" and reply["seed"] == 3 and len(reply["text"]) > 5
    assert say(capsys, *words) == say(capsys, *words) == reply["text"] + "\n"
    assert say(capsys, *words[:-1], "4") != reply["text"] + "\n"


def test_what_is_refused(lm_run, tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    damaged = Path(shutil.copytree(newest(lm_run), tmp_path / "damaged"))
    (damaged / "pretrained" / "config.json").write_text("{}")
    mine: dict[str, list[Any]] = {
        "--threshold: ": ["--prompt", "a", "--threshold", "1"],
        "--prompt.top_p: 0.0 must be greater than 0": ["--prompt", "a", "--top-p", "0"],
        "--seed: --perplexity does without": ["--perplexity", "generated", "--seed", "1"],
        "the prompt has ": ["--prompt", "Ab-" * 100],
        "--perplexity: no.txt: no such file": ["--perplexity", "no.txt"],
        "latin.txt": ["--perplexity", tmp_path / "latin.txt"],
        "--prompt --export: give exactly one of": ["--prompt", "a", "--export", "x"],
    }
    for message, words in mine.items():
        refused(["--model", lm_run, *words], message, capsys)
    refused(["--model", damaged, "--prompt", "a"], "config.json is not as it was written", capsys)
    (damaged / "manifest.json").unlink()
    refused(["--model", damaged, "--prompt", "a"], "does not load as a language model", capsys)


GREEDY = Sampling(max_new_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_byte_bpe(["the ship sank", "the crew swam to the shore"] * 5, 300)


def model(family: str, **keys: Any) -> Any:
    torch.manual_seed(1)
    config = tiny(family, vocab_size=300, **keys)
    made = AutoModelForCausalLM.from_config(config).eval()
    for parameter in made.parameters():  # so large that no two tokens are about as likely
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


@pytest.mark.parametrize("family", SHAPES)
def test_greedy_text_is_of_the_likeliest_tokens(family, tokenizer):
    """Each found by a forward pass over all before it."""
    lm_run, end = model(family), tokenizer.eos_token_id
    ids = torch.tensor([encode_prompt(tokenizer, "the ship")])
    first = ids.shape[1]
    while ids.shape[1] < first + 40 and ids[0, -1] != end:
        ids = torch.cat([ids, lm_run(ids).logits[:, -1:].argmax(-1)], dim=1)
    assert len(set(ids[0, first:].tolist())) > 2
    made, ended = complete(lm_run, tokenizer, "the ship", GREEDY)
    assert made == tokenizer.decode(ids[0, first:], skip_special_tokens=True)
    assert ended == ("end of text" if ids[0, -1] == end else "max_new_tokens")


def test_draws_follow_temperature_and_top_p(tokenizer):
    gpt2 = model("gpt2")
    gpt2.generation_config.repetition_penalty = 9.0  # as in the folder of a model: not used

    def drawn(**values: float) -> str:
        return complete(gpt2, tokenizer, "the ship", dataclasses.replace(GREEDY, **values))[0]

    likeliest = drawn()
    assert drawn(temperature=1e-300) == drawn(temperature=0.8, top_p=1e-9) == likeliest
    texts = [drawn(temperature=2.0, top_p=1.0, seed=seed) for seed in (0, 1, 2, 0)]
    assert texts[0] == texts[3] and len({*texts, likeliest}) == 4
    drawn(temperature=2.0, top_p=0.8)
    used = gpt2.generation_config
    assert (used.temperature, used.top_p, used.top_k) == (2.0, 0.8, 0)  # 0: of all tokens


def test_characters_come_whole(tokenizer, monkeypatch):
    """Tokens are bytes here: a character of three is shown with its last."""
    written, pieces = "東京 – the 🚢 sank", []
    tokens = iter([*encode_prompt(tokenizer, written), tokenizer.eos_token_id])

    def force(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(logits).index_fill(1, torch.tensor(next(tokens)), 1.0)

    monkeypatch.setattr(module, "_check", force)
    made = complete(model("gpt2"), tokenizer, "ship ", GREEDY, pieces.append)
    assert made == ("".join(pieces), "end of text") == (written, "end of text")
    assert pieces[0] == "東" and not any("\ufffd" in piece for piece in pieces)


def test_where_a_text_ends(tokenizer, monkeypatch):
    gpt2, long, steps = model("gpt2"), Sampling(max_new_tokens=500, temperature=0), []
    monkeypatch.setattr(tokenizer, "_special_tokens_map", {})  # no end of text
    monkeypatch.setattr(module, "_check", lambda ids, logits: steps.append(ids) or logits)
    _, ended = complete(gpt2, tokenizer, "the ship", long)
    assert ended == "positions"
    assert len(steps) == 64 - len(encode_prompt(tokenizer, "the ship")) + 1
    with pytest.raises(UserError, match="the prompt has .* tokens, and the model 64 positions"):
        complete(gpt2, tokenizer, "x" * 65, long)
    steps.clear()
    assert complete(gpt2, tokenizer, "x" * 64, long)[1] == "positions" and len(steps) == 1


def test_prompts_that_are_odd(tokenizer):
    end = tokenizer.eos_token_id
    assert encode_prompt(tokenizer, "") == [end]
    assert end not in encode_prompt(tokenizer, "a<|endoftext|>b")
    bare = copy.deepcopy(tokenizer)
    bare.eos_token = None
    for using, prompt, said in ((tokenizer, "\udce9", "not UTF-8"), (bare, "", "prompt is empty")):
        with pytest.raises(UserError, match=said):
            encode_prompt(using, prompt)
    broken = model("llama")
    broken.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(UserError, match="diverged"):
        complete(broken, tokenizer, "a", Sampling())
