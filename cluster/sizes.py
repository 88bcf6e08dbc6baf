"""Parameters, FLOPs and bytes of a model, from the keys of its config.json.

No torch is needed, and nothing is built or downloaded: the keys are those of a folder, of
`model_config`, or of cluster/data/speeds.yaml. What is traded is exactness: biases, norms
and positions are not counted, and memory is that of states and one window, within a fifth.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cluster.published import MASKED, MODELS
from detalbert.addresses import unreadable
from detalbert.engine.flops import encoder_flops_per_token
from detalbert.errors import UserError, as_user_error, nearest
from detalbert.settings.hparams import StepHParams
from detalbert.sums import load_json
from lm.flops import FFN_PRODUCTS, causal_flops_per_token

Sizes = Any  # attributes as a transformers config has them
OVERHEAD = 1.5 * 2**30  # bytes of a GPU for CUDA, NCCL and fragmentation
USABLE = 0.95  # of a GPU's memory as sold; the driver keeps some
# transformers' defaults of keys that a config may leave out.
USUAL = {"model_type": "albert", "vocab_size": 30_000}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# Their names in GPT-2.
GPT2_NAMES = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
}


def find_sizes(hparams: StepHParams, root: Path) -> Sizes:
    """Return the sizes of an experiment's model.

    Args:
        hparams: of the experiment.
        root: parent folder of relative model folders.

    Raises:
        UserError: if they are not known without a download.
    """
    name = hparams.model
    if name is None:
        # Pretraining has published sizes, `size`, besides the keys of the config.
        model_keys = getattr(hparams, "model_keys", None)
        keys = model_keys() if model_keys is not None else hparams.model_config
        return _as_config(keys or {})
    folder = root / name
    path = folder / "config.json"
    if os.path.isfile(path):
        with as_user_error(unreadable(str(path))):
            return _as_config(load_json(path))
    short_name = name.partition("@")[0].split("/")[-1]
    if short_name not in MODELS:
        raise UserError(
            f"the sizes of {name!r} are not known without a download",
            key="hyperparameters.model",
            cure=f"give a folder with its config.json; {nearest(short_name, MODELS)}",
        )
    return _as_config(MODELS[short_name])


def _as_config(keys: dict[str, Any]) -> Sizes:
    """Return the keys of a config.json as attributes.

    Raises:
        UserError: if a size is missing.
    """
    keys = {GPT2_NAMES.get(key, key): value for key, value in keys.items() if value is not None}
    keys = {**USUAL, **keys}
    if keys["model_type"] == "albert":
        keys.setdefault("embedding_size", 128)
    if keys["model_type"] == "gpt2":
        keys.setdefault("intermediate_size", 4 * keys.get("hidden_size", 0))
    for key in SIZES:
        size = keys.get(key)
        if not isinstance(size, int) or size < 1:
            raise UserError("no size", key=f"hyperparameters.model_config.{key}", cure="set it")
    return SimpleNamespace(**keys)


def parameters_of(sizes: Sizes) -> float:
    """Return the parameters of a model, but for biases, norms and positions."""
    hidden = sizes.hidden_size
    embedding = getattr(sizes, "embedding_size", hidden)
    heads = sizes.num_attention_heads
    kv_heads = getattr(sizes, "num_key_value_heads", heads)

    # ALBERT's layers have the weights of one.
    gated = sizes.model_type == "modernbert" or FFN_PRODUCTS.get(sizes.model_type) == 3
    projections = 2 * hidden * hidden * (1 + kv_heads / heads)
    layer = projections + (3 if gated else 2) * hidden * sizes.intermediate_size
    layers = 1 if sizes.model_type == "albert" else sizes.num_hidden_layers

    # GPT-2 and encoders have one table for embeddings and head.
    is_tied = getattr(sizes, "tie_word_embeddings", sizes.model_type not in ("gpt_neox", "llama"))
    tables = sizes.vocab_size * embedding * (1 if is_tied else 2)
    mapping = embedding * hidden if embedding != hidden else 0
    return layers * layer + tables + mapping


def flops_per_token(task: str, sizes: Sizes, tokens: float) -> float:
    """Return the FLOPs of training per token, recomputation left out.

    Args:
        task: fine-tuning, pretraining or language.
        sizes: of the model.
        tokens: real tokens of a window.

    Raises:
        UserError: for a family of language models that is not known.
    """
    if task != "language":
        return encoder_flops_per_token(sizes, tokens, MASKED if task == "pretraining" else 0.0)
    if sizes.model_type not in FFN_PRODUCTS:
        raise UserError(
            f"the work of a {sizes.model_type} is not known",
            key="hyperparameters.model_config.model_type",
            cure=f"use one of {', '.join(FFN_PRODUCTS)}",
        )
    return causal_flops_per_token(sizes, int(tokens))


def needed_gigabytes(sizes: Sizes, tokens: float, shards: int, recomputed: float) -> float:
    """Return the gigabytes that a GPU must be sold with to hold a model and a forward pass.

    Args:
        sizes: of the model.
        tokens: of the forward pass.
        shards: GPUs that share the states; 1: every GPU holds them.
        recomputed: share of the layers that run again in the backward pass.
    """
    hidden = sizes.hidden_size
    layers = sizes.num_hidden_layers

    # Weight, gradient and two moments in fp32. Replicas have a copy of the weights to compute with,
    # and one of the gradients to sum. Shards gather two layers, the embeddings and the head.
    parameters = parameters_of(sizes)
    states = 22 * parameters
    if shards > 1:
        states = 16 * parameters / shards
        states += 10 * (2 * parameters / layers + sizes.vocab_size * hidden)

    # Bytes that autograd keeps of a token and layer: inputs of norms and products, and those of the
    # feed-forward. Of a layer that runs again there is the input, and once the others.
    layer = 26 * hidden + 4 * sizes.intermediate_size
    token = layers * (1 - recomputed) * layer + recomputed * (2 * hidden * layers + layer)
    return (states + tokens * token + OVERHEAD) / USABLE / 2**30
