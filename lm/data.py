"""`data:` of a language model's experiment: its tokenizer, and the windows of both splits."""

import os
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.read import Shards
from detalbert.corpus.write import write_shards
from detalbert.engine.models import warn_of_other_tokens
from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from detalbert.training.workload import DataSummary
from lm.corpus import DocumentKind, load_tokenizer
from lm.hparams import LmHParams, parse_documents_config
from lm.layout import choose_layout
from lm.model import causal_config
from lm.packed import check_family
from lm.windows import LmWindows


class LmText(NamedTuple):
    """Data of a language model."""

    tokenizer: PreTrainedTokenizerBase
    train: LmWindows
    validation: LmWindows

    @classmethod
    def load(cls, values: dict[str, Any], hparams: LmHParams) -> "LmText":
        """Load `data:` of an experiment; write token shards if there are none yet, once per
        machine.

        Args:
            values: `data:` of the experiment.
            hparams: its `hyperparameters:`.

        Raises:
            UserError: if text, tokenizer or shards are invalid or do not match.
        """
        data = parse_documents_config(values)
        tokenizer = load_tokenizer(data, named_tokenizer)
        # Shards may take hours: a model that cannot be trained on them is refused before.
        warn_of_other_tokens(hparams, tokenizer, "they take each token for another")
        config = causal_config(hparams, tokenizer)
        check_family(config)
        # As torchrun has started them; the trial makes the mesh of the same layout.
        choose_layout(
            hparams.layout,
            config,
            slots=int(os.environ.get("WORLD_SIZE", "1")),
            slots_per_machine=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )
        address = data.shards or write_shards(data, DocumentKind(tokenizer))
        # Shards may have been made for another tokenizer.
        windows = {}
        for split in ("train", "validation"):
            shards = Shards(address, split, data)
            shards.check_tokenizer(tokenizer)
            windows[split] = LmWindows(shards, hparams.max_seq_length, hparams.across_documents)
        return cls(tokenizer, train=windows["train"], validation=windows["validation"])

    def summary(self) -> DataSummary:
        """Return what is logged of the data at the start, and its numbers of windows and tokens."""
        return DataSummary(
            {
                "train": self.train.describe(),
                "validation": self.validation.describe(),
            },
            windows=len(self.train),
            tokens=len(self.train) * self.train.length,
            validation_windows=len(self.validation),
        )

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify text and tokenizer, by config key."""
        return {
            "data.documents": self.train.shards.fingerprint(),
            "data.validation_documents": self.validation.shards.fingerprint(),
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.shuffle_shards": self.train.shards.data.shuffle_shards,
            "data.weights": self.train.shards.weights,
        }
