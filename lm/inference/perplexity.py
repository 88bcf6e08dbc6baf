"""Perplexity of a language model on a text: the validation of its run, to the text's last token."""

import json
import math
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from detalbert.corpus.documents import document_kind
from detalbert.corpus.reader import Shards
from detalbert.corpus.writer import write_shards
from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.engine.precision import resolve_precision
from detalbert.engine.rows import to_device
from detalbert.errors import NotFinite, UserError
from detalbert.settings.text import parse_documents_config
from detalbert.waiting import waiting
from lm.gradients import add_row, zero_sums
from lm.inference.load import SavedLm, load_model
from lm.loss import head_loss
from lm.packed import hidden_states
from lm.token_bytes import token_bytes
from lm.trial import Scores
from lm.windows import LmWindows, validation_loader


def print_perplexity(source: SavedLm, text: str, as_json: bool) -> None:
    """Print the scores of lm/trial.Scores over the whole of `text`, and its windows, one per line,
    or one line of JSON.

    Text, windows and rows are those of a run with `data.validation_documents=TEXT`, whose
    validation may be shorter: max_validation_windows. What that leaves out at a shard's end, since
    it fills no window, is a shorter window here: each token is scored once, with the context that
    its window has before it. So a text may be short. `text` is anything that `data.documents` may
    name. Raises UserError if text cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="perplexity-") as folder:
        windows = read_windows(source, text, Path(folder))
        model = load_model(source, PACKED_CAUSAL)
        scores = {**measure(model, windows, source), "windows": len(windows)}
    if not all(map(math.isfinite, scores.values())):
        raise NotFinite("--perplexity: the model's numbers are not finite; give another --model")
    if as_json:
        print(json.dumps(scores))
        return
    for name, value in scores.items():
        print(f"{name:24}{f'{value:,}' if isinstance(value, int) else f'{value:.6g}'}")


def read_windows(source: SavedLm, text: str, folder: Path) -> LmWindows:
    """Read all of `text` in windows of the run's length, with token shards in `folder`."""
    kept = {key: source.data[key] for key in ("shard_mib",) if key in source.data}
    values = {"documents": text, "validation_fraction": 0, "tokenizer": "the model's", **kept}
    data = parse_documents_config({**values, "cache_dir": str(folder)})
    try:
        kind = document_kind(source.tokenizer)
        write_shards(data, source.tokenizer, kind, str(folder / "shards"))
        split = "validation" if text == "generated" else "train"
        shards = Shards(str(folder / "shards"), split, data)
        hparams = source.hparams
        return LmWindows(shards, hparams.max_seq_length, hparams.across_documents, tails=True)
    except UserError as error:
        said = str(error).replace("data.documents", "--perplexity")
        raise type(error)(said) from None


@torch.no_grad()
def measure(model: PreTrainedModel, windows: LmWindows, source: SavedLm) -> dict[str, float]:
    """Return the metrics over all windows; `model` is of load.load_model, with packed attention."""
    device = model.device
    hparams = source.hparams
    half = resolve_precision(hparams.precision, device)
    for parameter in model.parameters():  # as FSDP hands them to the layers; buffers stay fp32
        parameter.data = parameter.data.to(half)
    head = model.get_output_embeddings().weight
    sizes = token_bytes(source.tokenizer, model.config.vocab_size, windows.average_bytes())
    scores = Scores(windows.shards.names, sizes, counts=True)
    scores.reset()
    loader, _ = validation_loader(windows, None, 0, 1, hparams.max_tokens_per_forward)
    with waiting("scoring", len(loader), "batches") as wait:
        for rows in wait.each(loader):
            sums = zero_sums(device)
            for row in rows:
                here = to_device(row, device)
                add_row(sums, row, *head_loss(hidden_states(model, here), head, here["targets"]))
            scores.add(rows, sums)
    return scores.cross_slot_reduce([scores.per_slot_reduce()])
