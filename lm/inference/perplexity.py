"""Perplexity of a language model on a text: the validation of its run, to the text's last token.

The text becomes token shards in a temporary folder, so that windows and scores are by the code of a
training; the price is a copy of the text's tokens on the disk.
"""

import json
import math
import tempfile
from pathlib import Path

import torch
from transformers import PreTrainedModel

from detalbert.corpus.documents import DocumentKind
from detalbert.corpus.read import Shards
from detalbert.corpus.write import write_shards
from detalbert.engine.attention import PACKED_CAUSAL
from detalbert.engine.precision import resolve_precision
from detalbert.engine.rows import to_device
from detalbert.errors import NotFinite, UserError
from detalbert.progress import waiting
from detalbert.settings.text import parse_documents_config
from lm.gradients import add_row, zero_sums
from lm.inference.load import SavedLm, load_model
from lm.model import CausalLoss
from lm.token_bytes import token_bytes
from lm.trial import TargetReducer
from lm.windows import LmWindows, validation_loader


def print_perplexity(source: SavedLm, text: str, as_json: bool) -> None:
    """Print the scores of lm/trial.TargetReducer over the whole of `text`, and its windows, one per
    line, or one line of JSON.

    Text, windows and rows are those of a run with `data.validation_documents=TEXT`, whose
    validation may be shorter: max_validation_windows. What that leaves out at a shard's end, since
    it fills no window, is a shorter window here: each token is scored once, with the context that
    its window has before it. So a text may be short.

    Args:
        source: the language model.
        text: anything that `data.documents` may name.
        as_json: print one line of JSON.

    Raises:
        UserError: if the text cannot be read.
        NotFinite: if the scores are not finite.
    """
    with tempfile.TemporaryDirectory(prefix="perplexity-") as folder:
        windows = read_windows(source, text, Path(folder))
        model = load_model(source, PACKED_CAUSAL)
        scores = {**measure(model, windows, source), "windows": len(windows)}
    if not all(math.isfinite(score) for score in scores.values()):
        raise NotFinite(
            "the model's numbers are not finite", key="--perplexity", cure="give another --model"
        )
    if as_json:
        print(json.dumps(scores))
        return
    for name, score in scores.items():
        number = f"{score:,}" if isinstance(score, int) else f"{score:.6g}"
        print(f"{name:24}{number}")


def read_windows(source: SavedLm, text: str, folder: Path) -> LmWindows:
    """Read all of `text` in windows of the run's length, with token shards in `folder`."""
    values = {
        "documents": text,
        "validation_fraction": 0,
        "tokenizer": "the model's",
        "cache_dir": str(folder),
    }
    if "shard_mib" in source.data:
        values["shard_mib"] = source.data["shard_mib"]
    shard_folder = str(folder / "shards")
    try:
        data = parse_documents_config(values)
        write_shards(data, DocumentKind(source.tokenizer), shard_folder)
        # The whole of a text is its training split; generated text has a validation of its own.
        split = "validation" if text == "generated" else "train"
        return LmWindows(
            Shards(shard_folder, split, data),
            source.hparams.max_seq_length,
            source.hparams.across_documents,
            tails=True,
        )
    except UserError as error:
        raise _of_flag(error) from None


def _of_flag(error: UserError) -> UserError:
    """Return an error of the text as a command says it that has no keys of a config."""
    is_address = error.key.startswith("data.")  # else a file's line, for example
    renamed = error.under("--perplexity" if is_address else error.key)
    if "data." in renamed.cure:
        renamed.cure = "give plain text"
    return renamed


@torch.no_grad()
def measure(model: PreTrainedModel, windows: LmWindows, source: SavedLm) -> dict[str, float]:
    """Return the metrics over all windows; `model` is of load.load_model, with packed attention."""
    device = model.device
    # As FSDP hands parameters to the layers; buffers stay fp32.
    dtype = resolve_precision(source.hparams.precision, device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)

    sizes = token_bytes(
        source.tokenizer, vocabulary=model.config.vocab_size, averages=windows.average_bytes()
    )
    reducer = TargetReducer(names=windows.shards.names, sizes=sizes, counts=True)
    reducer.reset()
    loader, _ = validation_loader(
        windows, limit=None, rank=0, ranks=1, max_tokens=source.hparams.max_tokens_per_forward
    )
    causal_loss = CausalLoss(model)
    with waiting("scoring", len(loader), "batches") as wait:
        for rows in wait.each(loader):
            sums = zero_sums(device)
            for row in rows:
                row_loss, correct = causal_loss(to_device(row, device))
                add_row(sums, row, loss=row_loss, correct=correct)
            reducer.add(rows, sums)
    return reducer.cross_slot_reduce([reducer.per_slot_reduce()])
