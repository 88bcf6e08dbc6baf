"""Several sources: their shares in training, their windows in a validation, their forms."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.corpus.mixture import Mixture
from lm.data import LmText
from lm.hparams import LmHParams
from pretrain.data import PretrainText
from pretrain.examples import ExampleOrder
from tests.conftest import max_examples
from tests.corpus.documents import write as write_documents
from tests.fakes.text import TOKENIZER, contexts, tiny, write

WEIGHTS = {"wiki": 0.5, "code": 0.3, "mail": 0.2}


def three(folder, **weights):
    """Write and return sources of different sizes: 60, 300 and 30 documents."""
    texts = contexts(400)
    sources = []
    for name, count in (("wiki", 60), ("code", 300), ("mail", 30)):
        path = folder / f"{name}.txt"
        path.write_text("\n".join(texts[:count]))
        del texts[:count]
        source = {"source": str(path)}
        if weights:
            source["weight"] = weights[name]
        sources.append(source)
    return sources


# Some sources are as good as never read, some have a share without an end.
RANDOM_WEIGHTS = st.lists(
    st.one_of(
        st.floats(0.01, 9),
        st.floats(1e-9, 1e-3),
        st.sampled_from([1 / 3, 4e-5, 2.7e-4, 1e-300, 1e300]),
        st.integers(1, 100),
    ),
    min_size=1,
    max_size=5,
)


@given(RANDOM_WEIGHTS, st.integers(0, 5_000_000))
@max_examples(60)
def test_every_stretch_has_each_source_by_its_weight(weights, first):
    sources, numbers = Mixture(weights).deal(first, 2_000)
    assert len(sources) == len(numbers) == 2_000
    total = sum(Fraction(weight) for weight in weights)
    for source, weight in enumerate(weights):
        share = float(Fraction(weight) / total)
        of_source = sources == source
        own = numbers[of_source]
        assert (np.diff(own) == 1).all()
        # The number of a window is how many of its source came before.
        positions = first + np.flatnonzero(of_source)
        assert (abs(own - positions * share) <= 2).all()
        assert abs(len(own) - 2_000 * share) <= 4

    later_sources, later_numbers = Mixture(weights).deal(first + 1_000, 1_000)
    assert np.array_equal(later_sources, sources[1_000:])
    assert np.array_equal(later_numbers, numbers[1_000:])


SMALL_SHARDS = {"shard_mib": 0.01, "validation_fraction": 0.1}
RANKS = (1, 2, 4)
Step = list[tuple[int, ...]]  # a step's windows, sorted: their places in shards or in an epoch


def steps_of(order, steps, ranks):
    """Return the windows of the first steps over all ranks."""
    result = []
    for number in range(steps):
        windows = [order.share(number, rank) for rank in range(ranks)]
        result.append(sorted(map(tuple, np.column_stack([np.concatenate(windows)]).tolist())))
    return result


def assert_weights_hold(steps, names, corpus):
    """Assert that an epoch follows WEIGHTS, and repeats a source's windows evenly.

    Args:
        names: sources of all windows of the steps.
    """
    windows = itertools.chain.from_iterable(steps)
    times = {name: Counter() for name in WEIGHTS}
    for name, window in zip(names, windows, strict=True):
        times[name][window] += 1
    for name, weight in WEIGHTS.items():
        assert times[name].total() / len(names) == pytest.approx(weight, abs=0.01)
    assert max(times["wiki"].values()) - min(times["wiki"].values()) <= 1
    assert max(times["code"].values()) == 1


def test_weights_hold_over_an_epoch_of_examples_at_every_layout(tmp_path):
    """And a source's own windows come each once before one comes again."""
    sources = three(tmp_path, **WEIGHTS)
    data = {"text": sources, "tokenizer": TOKENIZER, "cache_dir": str(tmp_path), **SMALL_SHARDS}
    train = PretrainText.load(data, tiny()).train
    count = len(train.lengths) // 8

    layouts = []
    for ranks in RANKS:
        order = ExampleOrder(train, 8, ranks, seed=1)
        layouts.append(steps_of(order, count, ranks))

    steps, *others = layouts
    assert others == [steps, steps]
    corpus = train.corpus
    sources = [corpus.sources[corpus.shard_of(number)] for step in steps for _, number in step]
    names = [corpus.names[source] for source in sources]
    assert_weights_hold(steps, names, corpus)


def test_shards_alone_suffice(tmp_path):
    """Their tokenizer, sources and weights are with them."""
    folder = write(three(tmp_path, **WEIGHTS), tmp_path, **SMALL_SHARDS)

    text = PretrainText.load({"shards": str(folder)}, tiny())

    assert text.train.corpus.weights == [0.5, 0.3, 0.2]
    assert len(text.tokenizer) > 300
    held_out = dict.fromkeys(WEIGHTS, 0)
    corpus = text.validation.corpus
    for windows in text.held_out:
        name = corpus.names[corpus.sources[corpus.shard_of(windows[0])]]
        held_out[name] = len(windows)
    assert held_out["code"] > held_out["wiki"] > 0


def test_shards_of_a_language_model_alone_suffice(tmp_path):
    three(tmp_path)
    folder = write_documents(tmp_path / "code.txt", tmp_path, article="line", **SMALL_SHARDS)
    config = {"model_type": "gpt2"}
    hparams = LmHParams(model_config=config, max_seq_length=16, across_documents=False)
    text = LmText.load({"shards": str(folder)}, hparams)
    assert len(text.train) > 3
