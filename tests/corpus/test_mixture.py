"""Several sources: their shares in training, their windows in a validation, their forms."""

import json
import logging
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import bucket
from detalbert.corpus import writer
from detalbert.corpus.__main__ import main
from detalbert.corpus.mixture import Mixture, apportion, draw_windows
from detalbert.corpus.reader import Shards
from detalbert.errors import Unavailable, UserError
from detalbert.settings.text import parse_text_config
from lm.data import LmText
from lm.order import WindowOrder
from pretrain.data import PretrainText
from pretrain.examples import ExampleOrder
from tests.conftest import max_examples
from tests.corpus.documents import documents_config, read_back
from tests.corpus.documents import write as write_documents
from tests.fakes.text import LENGTH, TOKENIZER, contexts, tiny, write

WEIGHTS = {"wiki": 0.5, "code": 0.3, "mail": 0.2}


def three(folder: Path, **weights: float) -> list[dict[str, Any]]:
    """Sources of different sizes: 60, 300 and 30 documents."""
    texts, first = contexts(400), 0
    for name, count in (("wiki", 60), ("code", 300), ("mail", 30)):
        (folder / f"{name}.txt").write_text("\n".join(texts[first : first + count]))
        first += count
    found = [{"source": str(folder / f"{name}.txt")} for name in WEIGHTS]
    weighted = zip(found, weights.values(), strict=False) if weights else ()
    return [{**one, "weight": weight} for one, weight in weighted] or found


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
def test_every_stretch_has_each_source_by_its_weight(weights: list[float], first: int) -> None:
    sources, numbers = Mixture(weights).deal(first, 2_000)
    assert len(sources) == len(numbers) == 2_000
    total = sum(map(Fraction, weights))
    for source, weight in enumerate(weights):
        share = float(Fraction(weight) / total)
        own = numbers[sources == source]
        assert np.array_equal(own, np.arange(len(own)) + (own[0] if len(own) else 0))
        positions = first + np.flatnonzero(sources == source)
        # The number of a window is how many of its source came before.
        assert (abs(own - positions * share) <= 2).all()
        assert abs(len(own) - 2_000 * share) <= 4
    again, after = Mixture(weights).deal(first + 1_000, 1_000)
    assert np.array_equal(again, sources[1_000:])
    assert np.array_equal(after, numbers[1_000:])


@given(RANDOM_WEIGHTS, st.integers(0, 10**15), st.integers(1, 300))
@max_examples(60)
def test_a_position_has_the_same_window_however_it_is_asked_for(
    weights: list[float], first: int, count: int
) -> None:
    mixture = Mixture(weights)
    sources, numbers = mixture.deal(first, count)
    apart = [mixture.deal(first + place, 1) for place in range(count)]
    assert sources.tolist() == [int(source[0]) for source, _ in apart]
    assert numbers.tolist() == [int(number[0]) for _, number in apart]


@pytest.mark.parametrize(
    "weights", [[4e-5, 1 - 4e-5], [1, 1, 1], [1 / 3, 2 / 3], [2.7e-4, 0.5, 0.2], [1e-6, 7, 2]]
)
def test_a_million_windows_follow_the_weights_to_one_window(weights: list[float]) -> None:
    sources, _ = Mixture(weights).deal(0, 1_000_000)
    counts = np.bincount(sources, minlength=len(weights))
    wanted = 1_000_000 * np.array(weights) / sum(weights)
    assert (abs(counts - wanted) <= 1).all()


def dealt_by_ten_thousandths(weights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The first 20,000 positions as older versions dealt them: their sources and numbers."""
    counts = apportion(weights, 10_000)
    times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    owners = np.repeat(np.arange(len(weights)), counts)
    order = np.argsort(times, kind="stable")
    numbers = np.concatenate([np.arange(count) for count in counts])[order]
    sources = np.concatenate([owners[order]] * 2)
    return sources, np.concatenate([numbers, numbers + counts[owners[order]]])


@pytest.mark.parametrize(
    "weights", [[1.0], [0.5, 0.3, 0.2], [5, 3, 2], [0.1234, 0.8766], [0.25] * 4, [0.0001, 0.9999]]
)
def test_weights_in_ten_thousandths_have_the_order_of_older_versions(weights: list[float]) -> None:
    sources, numbers = Mixture(weights).deal(0, 20_000)
    older_sources, older_numbers = dealt_by_ten_thousandths(weights)
    assert np.array_equal(sources, older_sources)
    assert np.array_equal(numbers, older_numbers)


def test_the_header_shows_a_small_share(tmp_path: Path) -> None:
    weights = {"wiki": 0.5, "code": 0.49996, "mail": 4e-5}
    corpus = Shards(
        str(write_documents(three(tmp_path, **weights), tmp_path, article="line")),
        "train",
        documents_config(three(tmp_path, **weights), tmp_path, article="line"),
    )
    lines = corpus.describe_sources(np.ones(len(corpus.shards)))
    assert lines["- wiki"].startswith("50.0% of an epoch, ")
    assert lines["- mail"] == "0.0040% of an epoch, its 1 windows 0.00012 times"


@given(st.lists(st.integers(0, 50), min_size=1).filter(any), st.integers(0, 99))
def test_shares_are_whole_and_add_up(weights: list[int], total: int) -> None:
    counts, exact = apportion(weights, total), np.array(weights) / sum(weights) * total
    assert counts.sum() == total and (abs(counts - exact) < 1).all()


def test_a_capped_validation_sees_each_source_in_proportion() -> None:
    sources = np.repeat([0, 1, 0, 2], [100, 60, 20, 20])
    drawn = draw_windows(sources, 50)
    assert [len(some) for some in drawn] == [30, 15, 5]
    for number, some in enumerate(drawn):
        assert (sources[some] == number).all() and (np.diff(some) > 0).all()
    assert max(drawn[0]) > 160 > min(drawn[0])  # not the first ones
    for limit in (200, None):
        assert [len(some) for some in draw_windows(sources, limit)] == [120, 60, 20]


@pytest.mark.parametrize("kind", ["examples", "windows"])
def test_weights_hold_over_an_epoch_at_every_layout(kind: str, tmp_path: Path) -> None:
    """And a source's own windows come each once before one comes again."""
    more: Any = {"shard_mib": 0.01, "validation_fraction": 0.1}
    mixed, ranks = three(tmp_path, **WEIGHTS), (1, 2, 4)
    orders: list[Any]
    if kind == "examples":
        data = {"text": mixed, "tokenizer": TOKENIZER, "cache_dir": str(tmp_path), **more}
        train = PretrainText.load(data, tiny()).train
        corpus, count = train.corpus, len(train.lengths) // 8
        orders = [ExampleOrder(train, 8, n, seed=1, group=2) for n in ranks]
    else:
        folder = write_documents(mixed, tmp_path, article="line", **more)
        lm_data = documents_config(mixed, tmp_path, article="line", **more)
        corpus = Shards(str(folder), "train", lm_data)
        counts = np.array([shard["tokens"] // 32 for shard in corpus.shards])
        mix: Any = corpus.sources, corpus.weights
        orders = [WindowOrder(counts, 8, 1, 2, n, *mix) for n in ranks]
        count = len(orders[0]) // 8

    def step(order: Any, number: int, n: int) -> list[tuple[int, ...]]:
        shares = [order.share(number, rank) for rank in range(n)]
        places = shares if kind == "examples" else [share[1] for share in shares]
        return sorted(map(tuple, np.concatenate(places).tolist()))

    one, *others = (
        [step(order, i, n) for i in range(count)] for order, n in zip(orders, ranks, strict=True)
    )
    assert others == [one, one]
    times: dict[str, list[int]] = {name: [] for name in WEIGHTS}
    for place, number in Counter(place for each in one for place in each).items():
        source = corpus.source_of(place[1]) if kind == "examples" else corpus.sources[place[0]]  # type: ignore[attr-defined]
        times[corpus.names[source]].append(number)
    for name, weight in WEIGHTS.items():
        assert sum(times[name]) / (8 * count) == pytest.approx(weight, abs=0.01)
    assert max(times["wiki"]) - min(times["wiki"]) <= 1 and max(times["code"]) == 1
    lines = corpus.describe_sources(np.ones(len(corpus.shards)))
    assert lines["- wiki"].startswith("50.0% of an epoch, its ")
    assert list(lines) == ["- wiki", "- code", "- mail"]


def test_a_pattern_selects_files_and_the_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a1.txt", "a2.txt", "b1.txt", "c.pdf", ".hidden"):
        (folder / name).write_text(f"Text of {name}.")
    values = {"validation_fraction": 0}
    found = read_back(write_documents(folder / "a*.txt", tmp_path, **values), "train")
    assert found == ["Text of a1.txt.", "Text of a2.txt."]
    with caplog.at_level(logging.WARNING):
        assert len(read_back(write_documents(folder, tmp_path, **values), "train")) == 3
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warned == ["data.documents: 2 files are passed over: .hidden, c.pdf"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ([], "data.text: an empty list; name a source"),
        ([3], r"data.text\[0\]: expected text or a mapping with 'source', got 3"),
        ([{"sauce": "a"}], r"data.text\[0\].sauce: unknown key"),
        ([{"source": "a", "weight": 0}], r"data.text\[0\].weight: 0.0 must be greater than 0"),
        ([{"source": "a", "weight": 1}, "b"], "data.text: some sources have a 'weight'"),
        (["x/a.txt", "y/a.txt"], "data.text: two sources are called a; give each its 'name'"),
        ([{"source": "a", "name": "a b"}], "data.text: name 'a b': letters"),
        (3, "data.text: expected text or a list or a mapping of keys, got 3"),
    ],
)
def test_a_wrong_list_is_one_line(text: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        parse_text_config({"text": text, "tokenizer": "x"})


def test_shards_alone_suffice(tmp_path: Path) -> None:
    """Their tokenizer, sources and weights are with them."""
    more = {"shard_mib": 0.01, "validation_fraction": 0.1}
    folder = write(three(tmp_path, **WEIGHTS), tmp_path, **more)
    alone = {"shards": str(folder)}
    text = PretrainText.load(alone, tiny())
    assert text.train.corpus.weights == [0.5, 0.3, 0.2] and len(text.tokenizer) > 300
    held = dict.fromkeys(WEIGHTS, 0)
    for some in text.held_out:
        held[text.validation.corpus.names[text.validation.corpus.source_of(some[0])]] = len(some)
    assert held["code"] > held["wiki"] > 0
    own = write_documents(tmp_path / "code.txt", tmp_path, article="line", **more)
    assert len(LmText.load({"shards": str(own)}, type("H", (), LM)).train) > 3  # type: ignore[arg-type]


def test_what_makes_shards_count_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(bucket, "put", lambda _, address, names: sent.extend(names))
    (tmp_path / "a.bin").touch()
    target = writer.Target("s3://b/x/", "")
    target.folder = tmp_path
    target.move(["a.bin"], "jobs/0.json")
    assert sent == ["a.bin", "jobs/0.json"] and not any(tmp_path.iterdir())
    for address in ("s3://bucket", "file:///x", "s3:/b/x"):
        with pytest.raises(UserError, match=f"^{address}: give s3://BUCKET/PATH"):
            writer.Target(address, "")


LM = {"max_seq_length": 16, "across_documents": False}


def test_the_command_writes_to_s3_and_goes_on(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    client, _ = s3  # whose faults are of reading
    monkeypatch.setenv("AWS_ENDPOINT_URL", client.meta.endpoint_url)
    text, config = three(tmp_path), tmp_path / "c.yaml"
    data = {"text": text, "tokenizer": TOKENIZER, "shard_mib": 0.01, "cache_dir": str(tmp_path)}
    hparams = {"size": "tiny", "max_seq_length": LENGTH}
    config.write_text(json.dumps({"hyperparameters": hparams, "data": data}))
    upload, times = writer.Target.move, []

    def move(target: Any, names: list[str], *last: str) -> None:
        times.extend([names] if names else [])
        if names and len(times) == 3:
            raise Unavailable("cut")
        upload(target, names, *last)

    monkeypatch.setattr(writer.Target, "move", move)
    command = [str(config), "--output", "s3://bucket/shards", "--workers", "1"]
    assert main(command) == 4 and "unavailable: cut" in capsys.readouterr().err
    other = [*command, "--set", "data.shard_mib=0.02"]  # none of its shards are added to these
    assert main(other) == 2 and "another text, tokenizer or length" in capsys.readouterr().err
    assert main(command) == 0 and main(command) == 0
    shown = capsys.readouterr().out
    assert "a document of plain text is a line" in shown
    sent = [name for names in times for name in names if name.endswith(".bin")]
    assert len(sent) == len(set(sent)) + len(times[2])  # what was cut; the rest is not done again
    there = {o["Key"] for o in client.list_objects_v2(Bucket="bucket")["Contents"]}
    folder = write(text, tmp_path, shard_mib=0.01)
    assert there >= {f"shards/{path.name}" for path in folder.iterdir() if path.is_file()} - {
        "shards/.lock"
    }
    client.download_file("bucket", "shards/index.json", str(tmp_path / "index.json"))
    assert (tmp_path / "index.json").read_bytes() == (folder / "index.json").read_bytes()
    far, near = (
        PretrainText.load({"shards": place, "cache_dir": str(tmp_path)}, tiny())
        for place in ("s3://bucket/shards", str(folder))
    )
    assert np.array_equal(far.train.lengths, near.train.lengths)
    assert far.fingerprints() == near.fingerprints()
