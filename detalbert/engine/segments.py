"""Segments: whether a model is told which tokens are the question's and which the context's.

A tokenizer says so by listing token_type_ids among its `model_input_names`: transformers' own call
for a pair of texts leaves them out otherwise, and all tokens are then of the first segment. That
call is followed, so that an answer is the library's. But transformers 5 has dropped the entry from
classes whose models were trained with both segments by transformers 4; for
them, and for ALBERT with any tokenizer, the segments of the tokenizer's template stay.
"""

import logging

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from detalbert.squad.encoding import tokenizing

# transformers 4 had no list for these classes: its default names token_type_ids.
_DROPPED = {"AlbertTokenizer", "FunnelTokenizer", "RemBertTokenizer", "RoFormerTokenizer"}
_DROPPED |= {"SplinterTokenizer", "XLNetTokenizer"}
log = logging.getLogger(__name__)


def has_segments(config: PretrainedConfig) -> bool:
    """Return whether a model of `config` distinguishes segments."""
    return getattr(config, "type_vocab_size", 0) > 1 or config.model_type == "xlnet"


def takes_segments(model: PreTrainedModel) -> bool:
    """Return whether a model gets token_type_ids: if it has segments, unless its config says that
    it was trained without (`follow_tokenizer`).
    """
    return has_segments(model.config) and getattr(model.config, "segments", True)


def follow_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have a model run without segments if its tokenizer lists none; log where the two differ.

    The choice is stored in the model's config, and so in checkpoints and exports.
    """
    listed = "token_type_ids" in tokenizer.model_input_names
    if listed or not has_segments(model.config) or not _second_segment(tokenizer):
        return
    # ALBERT was pretrained with both segments, whatever its tokenizer's class.
    tokenizer_class = type(tokenizer).__name__
    trained_with = model.config.model_type == "albert" or tokenizer_class in _DROPPED
    if not trained_with:
        model.config.segments = False
        consequence = "runs without, as in transformers"
    else:
        consequence = "gets both segments, as it was trained"
    log.info(
        "%s has segments, and its %s lists no token_type_ids: it %s",
        type(model).__name__,
        tokenizer_class,
        consequence,
    )


def _second_segment(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a fast tokenizer gives the second text of a pair another segment."""
    if not tokenizer.is_fast:
        return False  # refused when it is to make windows
    with tokenizing():
        pair = tokenizer.backend_tokenizer.encode("a", "a")
        return any(pair.type_ids)
