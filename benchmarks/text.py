"""The stages without a model: featurising, decoding and scoring."""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peer
from benchmarks.measure import Different, Options, interleave, peak_memory, rates, ratio_of
from benchmarks.parity import validation_seconds
from data import load_tokenizer
from detalbert.errors import UserError
from detalbert.settings.hparams import DataConfig, HParams
from detalbert.squad import metrics
from detalbert.squad.answers import merge_answers
from detalbert.squad.decoding import Candidates, best_spans
from detalbert.squad.sources import open_source, read_examples
from detalbert.squad.windows import Example, Windows, build_windows

LIMITS = peer.Limits()
SCALE = 3.0  # of the random logits
SEED = 2018
ROWS = 4096 // 8  # windows decoded at a time; nothing but memory depends on it


def examples_of(options: Options, name: str) -> list[Example]:
    """The questions of `train` or `dev` in the data folder. Raises UserError without the file."""
    path = options.data / f"{name}.json"
    if not path.is_file():
        raise UserError(f"--data {options.data}: no {name}.json in it; give a folder that has one")
    return read_examples(open_source(str(path), "train", Path(".")), limit=options.examples)[0]


@lru_cache(maxsize=2)
def tokenizer_of(options: Options) -> Any:
    config = DataConfig("", "", tokenizer=options.tokenizer)
    return load_tokenizer(config, HParams(model=options.tokenizer))


# ---- featurising ---------------------------------------------------------------------------


def _prepare_features(options: Options, side: str) -> Callable[[], Any]:
    """Ours keeps every window; the peer drops each batch, as one that writes it to disk would."""
    examples, tokenizer = examples_of(options, "train"), tokenizer_of(options)
    if side == "ours":
        return partial(build_windows, examples, tokenizer)

    def run() -> None:
        for _ in peer.features(examples, tokenizer, LIMITS):
            pass

    return run


def check_windows(examples: list[Example], windows: Windows, tokenizer: Any) -> None:
    """Raises Different unless `windows` are the peer's, token for token and label for label."""
    done = 0
    for batch in peer.features(examples, tokenizer, LIMITS):
        count = len(batch["input_ids"])
        if len(windows) < done + count:
            raise Different(f"featurize: {len(windows)} windows, the peer has more")
        row = windows.pack(np.arange(done, done + count))
        mask = np.array(batch["attention_mask"], bool)
        for name in ("input_ids", "token_type_ids"):
            _same(f"featurize: {name}", row[name], np.array(batch[name])[mask])
        for name in ("start_positions", "end_positions"):
            _same(f"featurize: {name}", row[name], np.array(batch[name]))
        number = windows.example_index[done : done + count]
        _same("featurize: examples", number, np.array(batch["example_index"]))
        for i, (low, high) in enumerate(batch["context"]):
            begin = windows.context_begin[done + i]
            ours = windows.context_offsets[begin : begin + windows.context_length[done + i]]
            theirs = np.array(batch["offset_mapping"][i][low:high]).reshape(-1, 2)
            _same("featurize: offsets", ours, theirs)
        done += count
    if len(windows) != done:
        raise Different(f"featurize: {len(windows)} windows, the peer has {done}")


def _same(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    if not np.array_equal(ours, theirs):
        raise Different(f"{what} differ from the peer's")


def featurize(options: Options) -> dict[str, Any]:
    """Windows of the train file a second, and what that takes of memory."""
    examples, tokenizer = examples_of(options, "train"), tokenizer_of(options)
    windows = build_windows(examples, tokenizer)
    check_windows(examples, windows, tokenizer)
    sides = {side: _prepare_features(options, side) for side in ("ours", "peer")}
    return {
        **_result(options, sides, _prepare_features, windows=len(windows), examples=len(examples)),
        "settings": {
            "questions": len(examples),
            "windows": len(windows),
            "tokens": int(windows.lengths.sum(dtype=np.int64)),
        },
    }


def _result(
    options: Options,
    sides: dict[str, Callable[[], Any]],
    prepare: Callable[..., Callable[[], Any]],
    **amounts: float,
) -> dict[str, Any]:
    """Rates and peak memory of both sides, and their ratios; the first amount's rate counts.

    Peaks are counted in pages, of which there is at least one.
    """
    results = rates(interleave(sides, options.repeats), **amounts)
    for side in sides:
        results[side]["peak_memory_bytes"] = peak_memory(prepare, options, side)
    peak = {side: max(results[side]["peak_memory_bytes"], 4096) for side in results}
    rate = f"{next(iter(amounts))}_per_second"
    ratio = {rate: ratio_of(results, rate), "peak_memory": peak["peer"] / peak["ours"]}
    return {"results": results, "ratio": ratio}


# ---- decoding and scoring ------------------------------------------------------------------


def random_logits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """The golden logits' recipe: start and end, float32 [count, 384]."""
    rng, shape = np.random.default_rng(SEED), (count, LIMITS.max_seq_length)
    start = rng.standard_normal(shape, dtype=np.float32) * np.float32(SCALE)
    return start, rng.standard_normal(shape, dtype=np.float32) * np.float32(SCALE)


def _prepare_decoding(options: Options, side: str) -> Callable[[], Any]:
    """Decoding of the dev file over padded rows: random logits past a window's end take places
    among the best too, on both sides, as in the golden predictions."""
    examples, tokenizer = examples_of(options, "dev"), tokenizer_of(options)
    windows = build_windows(examples, tokenizer)
    start, end = random_logits(len(windows))
    if side == "ours":
        rows = []
        for at in range(0, len(windows), ROWS):
            chosen = np.arange(at, min(at + ROWS, len(windows)))
            row: dict[str, Any] = {k: torch.from_numpy(x) for k, x in windows.pack(chosen).items()}
            row["cu_seqlens"] = torch.arange(len(chosen) + 1) * LIMITS.max_seq_length
            row["max_length"] = LIMITS.max_seq_length
            sides = (torch.from_numpy(x[chosen]).view(-1) for x in (start, end))
            rows.append((*sides, row))
        return partial(_decode, examples, windows, rows)
    offsets: list[Any] = []
    features_of: dict[int, list[int]] = {}
    for batch in peer.features(examples, tokenizer, LIMITS):
        for feature, number in enumerate(batch["example_index"], len(offsets)):
            features_of.setdefault(number, []).append(feature)
        offsets += batch["offset_mapping"]
    return partial(peer.decode, examples, features_of, offsets, start, end, LIMITS)


def _decode(examples: list[Example], windows: Windows, rows: list[Any]) -> Any:
    k, longest = LIMITS.n_best_size, LIMITS.max_answer_length
    spans: list[Candidates] = [best_spans(*row, k, longest) for row in rows]
    return merge_answers(examples, windows, spans)


def _golden(options: Options) -> dict[str, Any]:
    path = options.data.parent / "golden" / "predictions_dev.json"
    whole = options.examples is None
    return json.loads(path.read_text()) if whole and path.is_file() else {}


def decode(options: Options) -> dict[str, Any]:
    """Windows of the dev file a second, from random logits to answers."""
    sides = {side: _prepare_decoding(options, side) for side in ("ours", "peer")}
    ours, theirs = (tuple(call())[:2] for call in sides.values())
    if ours != theirs:
        raise Different("decode: answers or null odds differ from the peer's")
    golden = _golden(options)
    if golden and ours != (golden["predictions"], golden["null_odds"]):
        raise Different("decode: answers or null odds differ from the golden file")
    count = sum(len(row[2]["windows"]) for row in sides["ours"].args[2])
    return {
        **_result(options, sides, _prepare_decoding, windows=count),
        "settings": {"windows": count, "golden": bool(golden)},
    }


def _prepare_scoring(options: Options, side: str) -> Callable[[], Any]:
    """Scoring of the answers that random logits give. The words of texts are not remembered."""
    examples = examples_of(options, "dev")
    answers = _prepare_decoding(options, "ours")()
    if side == "peer":
        return partial(peer.score, examples, *answers)

    def run() -> dict[str, float]:
        metrics.answer_words.cache_clear()
        return metrics.score(examples, *answers)

    return run


def score(options: Options) -> dict[str, Any]:
    """Questions of the dev file a second, and what share of a validation that is."""
    sides = {side: _prepare_scoring(options, side) for side in ("ours", "peer")}
    ours, theirs = (call() for call in sides.values())
    if ours.keys() != theirs.keys() or any(abs(ours[k] - theirs[k]) > 1e-9 for k in ours):
        raise Different("score: metrics differ from the peer's")
    decoding = interleave({"ours": _prepare_decoding(options, "ours")}, options.repeats)["ours"]
    questions = len(examples_of(options, "dev"))
    result = _result(options, sides, _prepare_scoring, questions=questions)
    model = validation_seconds(options)
    both = float(np.median(decoding)) + result["results"]["ours"]["seconds"]["median"]
    return {
        **result,
        "validation": {
            "model_seconds": model,  # the forward pass of the whole dev file
            "decode_and_score_seconds": both,
            "share": both / (model + both),
        },
        "settings": {"questions": questions},
    }
