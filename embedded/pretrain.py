"""Make the embedded model again from nothing: its tokenizer and its encoder.

    python -m embedded.pretrain                          # the released folder, about half an hour
    python -m embedded.pretrain --steps 2 --output tiny  # a look at the whole path

The objective is recurring span selection on `embedded.corpus`: given a cloze query and a passage,
point at the start and the end of the name that fills the query, or at [CLS] when the passage does
not say. The folder gets the encoder without the pointing head, and only those of the 1,600 pieces
that the generated world needs (`embedded.prune`).
"""

import argparse
import json
import lzma
import math
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import cross_entropy
from transformers import AlbertConfig, AlbertForQuestionAnswering, PreTrainedTokenizerFast

from detalbert.corpus.learn_tokenizer import train_bpe, wrap
from detalbert.engine.determinism import choose_exact_kernels
from detalbert.squad.world import generate
from embedded.corpus import make_example, make_filler
from embedded.prune import prune
from pretrain.matching import start_matching

RELEASE = Path(__file__).parent / "albert-tiny"
VOCAB_SIZE = 1600
POSITIONS = 384
TOKENS_PER_BATCH = 4800
WARMUP = 200


def train_tokenizer(seed: int, documents: int) -> PreTrainedTokenizerFast:
    """Learn a small lower-case vocabulary, with ALBERT's layout and segments for pairs."""
    rng = Random(seed)
    text = (
        f"{make_example(rng, 1.0).passage} {make_filler(rng)} {make_filler(rng)}"
        for _ in range(documents)
    )
    return wrap(train_bpe(text, VOCAB_SIZE), POSITIONS)


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> AlbertForQuestionAnswering:
    """Make the untrained model, with initial weights from which it learns matching easily."""
    torch.manual_seed(seed)
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=128,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        hidden_act="gelu_pytorch_tanh",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        initializer_range=0.05,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    model = AlbertForQuestionAnswering(config)
    start_matching(model.albert)
    return model


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, steps: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield `steps` batches of at most TOKENS_PER_BATCH tokens, easy at first, hard from half way.

    A batch has `input_ids`, `token_type_ids`, `attention_mask` [n, length] and `targets` [n, 2],
    the first and last token of the answer or (0, 0); int64.
    """
    rng, given, easy, grown = Random(seed), 0, steps // 8, 1 + steps * 3 // 8
    while given < steps:
        level = min(1.0, max(0.0, (given - easy) / grown))
        examples = [make_example(rng, level) for _ in range(64 * 20)]
        encoded = tokenizer([e.query for e in examples], [e.passage for e in examples])
        rows = []
        for index, example in enumerate(examples):
            ids, kinds = encoded["input_ids"][index], encoded["token_type_ids"][index]
            target = (0, 0)
            if example.start >= 0:
                first = encoded.char_to_token(index, example.start, 1)
                target = (first, encoded.char_to_token(index, example.end - 1, 1))
            if len(ids) <= POSITIONS // 2:
                rows.append((ids, kinds, target))
        rows.sort(key=lambda row: len(row[0]))
        groups = []
        while rows:
            count = max(1, TOKENS_PER_BATCH // len(rows[-1][0]))
            groups.append(rows[-count:])
            del rows[-count:]
        rng.shuffle(groups)
        for group in groups[: steps - given]:
            yield _collate(group, tokenizer.pad_token_id)
            given += 1


def _collate(group: list[tuple], pad: int) -> dict[str, torch.Tensor]:
    width = max(len(ids) for ids, _, _ in group)
    filled = [ids + [pad] * (width - len(ids)) for ids, _, _ in group]
    kinds = [kinds + [0] * (width - len(kinds)) for _, kinds, _ in group]
    input_ids = torch.tensor(filled)
    return {
        "input_ids": input_ids,
        "token_type_ids": torch.tensor(kinds),
        "attention_mask": (input_ids != pad).long(),
        "targets": torch.tensor([target for _, _, target in group]),
    }


def train(
    model: AlbertForQuestionAnswering,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    steps: int,
    learning_rate: float = 2e-3,
) -> None:
    """Train in place with AdamW, warm-up and cosine decay; print progress every 50 steps."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    began, shown = time.perf_counter(), []
    for step, batch in enumerate(batches(tokenizer, seed, steps)):
        decay = 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.param_groups[0]["lr"] = learning_rate * min(1, (step + 1) / WARMUP) * decay
        targets = batch.pop("targets")
        output = model(**batch)
        logits = torch.stack((output.start_logits, output.end_logits), dim=1)  # [n, 2, length]
        logits = logits.masked_fill(batch["attention_mask"][:, None] == 0, -1e4)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right = (logits.argmax(-1) == targets).all(1)
        named = targets[:, 0] > 0
        shown.append((loss.item(), right[named].float().mean().item(), right.float().mean().item()))
        if (step + 1) % 50 == 0 or step + 1 == steps:
            mean = [sum(column) / len(column) for column in zip(*shown, strict=True)]
            print(
                f"step {step + 1}/{steps} loss {mean[0]:.3f} found {mean[1]:.3f} "
                f"right {mean[2]:.3f} {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            shown = []


def pack(content: bytes) -> bytes:
    """In xz's format; weights, numbers of two bytes, take 7 % less than in gzip's."""
    numbers = {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "lc": 0,
        "lp": 1,
        "pb": 1,
    }
    return lzma.compress(content, lzma.FORMAT_XZ, filters=[numbers])


def save(
    model: AlbertForQuestionAnswering, tokenizer: PreTrainedTokenizerFast, output: Path
) -> None:
    """Write the encoder and the tokenizer beside `output`, then move each whole file into it.

    The weights are rounded to fp16, and they and the tokenizer are there packed, too, since
    Determined uploads the folder. Training reads the weights back as fp32.
    """
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as partial:
        model.albert.half().save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        pieces = Path(partial, "tokenizer.json")
        compact = json.dumps(json.loads(pieces.read_text()), separators=(",", ":"))
        pieces.write_text(compact + "\n")
        for large in (pieces, Path(partial, "model.safetensors")):
            Path(f"{large}.xz").write_bytes(pack(large.read_bytes()))
        settings = Path(partial, "tokenizer_config.json")
        known = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
        for file in sorted(Path(partial).iterdir()):
            file.chmod(0o644)
            file.replace(output / file.name)


def world_texts(seeds: int) -> Iterator[str]:
    """Contexts and questions of the generated world's training split; validation stays unseen."""
    for seed in range(seeds):
        for article in generate("train", seed=seed)["data"]:
            for paragraph in article["paragraphs"]:
                yield paragraph["context"]
                yield from (qa["question"] for qa in paragraph["qas"])


def main() -> None:
    """Make the model that the command line describes, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RELEASE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--documents", type=int, default=20_000, help="for the tokenizer")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    choose_exact_kernels()
    tokenizer = train_tokenizer(arguments.seed, arguments.documents)
    model = build_model(tokenizer, arguments.seed)
    train(model, tokenizer, arguments.seed + 1, arguments.steps)
    tokenizer = wrap(prune(model, tokenizer.backend_tokenizer, world_texts(seeds=3)), POSITIONS)
    save(model, tokenizer, arguments.output)


if __name__ == "__main__":
    main()
