"""Several sources: their shares in training, their windows in a validation, their forms."""

import csv
import gzip
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert import bucket
from detalbert.corpus import writer
from detalbert.corpus.__main__ import main
from detalbert.corpus.mixture import Mixture, apportion, draw_windows
from detalbert.corpus.reader import Shards
from detalbert.errors import Unavailable, UserError
from detalbert.settings.text import parse_documents_config, parse_text_config
from lm.data import LmText
from lm.order import WindowOrder
from pretrain.data import PretrainText
from pretrain.examples import ExampleOrder
from tests.conftest import max_examples
from tests.corpus.documents import byte_tokenizer, documents_config, read_back
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


@given(st.lists(st.floats(0.01, 9), min_size=1, max_size=6), st.integers(0, 30_000))
@max_examples(60)
def test_every_stretch_has_each_source_by_its_weight(weights: list[float], first: int) -> None:
    sources, numbers = Mixture(weights).deal(first, 2_000)
    for source, weight in enumerate(weights):
        mine = numbers[sources == source]
        assert abs(len(mine) - 2_000 * weight / sum(weights)) <= 2 + len(weights)
        assert np.array_equal(mine, np.arange(len(mine)) + (mine[0] if len(mine) else 0))
    again, after = Mixture(weights).deal(first + 1_000, 1_000)
    assert np.array_equal(again, sources[1_000:]) and np.array_equal(after, numbers[1_000:])


@given(st.lists(st.integers(0, 50), min_size=1).filter(any), st.integers(0, 99))
def test_shares_are_whole_and_add_up(weights: list[int], total: int) -> None:
    counts = apportion(weights, total)
    assert (
        counts.sum() == total and (abs(counts - np.array(weights) / sum(weights) * total) < 1).all()
    )


def test_a_capped_validation_sees_each_source_in_proportion() -> None:
    sources = np.repeat([0, 1, 0, 2], [100, 60, 20, 20])
    drawn = draw_windows(sources, 50)
    assert [len(some) for some in drawn] == [30, 15, 5]
    for number, some in enumerate(drawn):
        assert (sources[some] == number).all() and (np.diff(some) > 0).all()
    assert max(drawn[0]) > 160 > min(drawn[0])  # not the first ones
    assert (
        [len(some) for some in draw_windows(sources, 200)]
        == [120, 60, 20]
        == [len(some) for some in draw_windows(sources, None)]
    )


@pytest.mark.parametrize("kind", ["examples", "windows"])
def test_weights_hold_over_an_epoch_at_every_layout(kind: str, tmp_path: Path) -> None:
    """And a source's own windows come each once before one comes again."""
    more: Any = {"shard_mib": 0.01, "validation_fraction": 0.1}
    mixed = three(tmp_path, **WEIGHTS)
    steps: dict[int, list[list[tuple[int, ...]]]] = {}
    if kind == "examples":
        data = {"text": mixed, "tokenizer": TOKENIZER, "cache_dir": str(tmp_path), **more}
        text = PretrainText.load(data, tiny())
        corpus, batch = text.train.corpus, 8
        lengths = len(text.train.lengths) // batch
        for ranks in (1, 2, 4):
            order = ExampleOrder(text.train, batch, ranks, seed=1, group=2)
            shares = [[order.share(step, r) for r in range(ranks)] for step in range(lengths)]
            steps[ranks] = [sorted(map(tuple, np.concatenate(s).tolist())) for s in shares]
        named = [corpus.names[corpus.source_of(n)] for step in steps[1] for _, n in step]
    else:
        write_documents(mixed, tmp_path, article="line", **more)
        lm_data = documents_config(mixed, tmp_path, article="line", **more)
        corpus = Shards(str(next((tmp_path / "cache").glob("shards-*"))), "train", lm_data)
        counts = np.array([shard["tokens"] // 32 for shard in corpus.shards])
        for ranks in (1, 2, 4):
            mix: Any = 1, 2, ranks, corpus.sources, corpus.weights
            found = WindowOrder(counts, 8, *mix)
            shares = [[found.share(i, r)[1] for r in range(ranks)] for i in range(len(found) // 8)]
            steps[ranks] = [sorted(map(tuple, np.concatenate(s).tolist())) for s in shares]
        named = [corpus.names[corpus.sources[s]] for step in steps[1] for s, _ in step]
    assert steps[1] == steps[2] == steps[4]
    for name, weight in WEIGHTS.items():
        assert Counter(named)[name] / len(named) == pytest.approx(weight, abs=0.01)
    walked = Counter(window for step in steps[1] for window in step)
    rare = {window: n for window, n in walked.items() if named}
    seen = {name: set() for name in WEIGHTS}
    for window, times in rare.items():
        place = window[1] if kind == "examples" else window[0]
        owner = corpus.source_of(place) if kind == "examples" else corpus.sources[place]  # type: ignore[attr-defined]
        seen[corpus.names[owner]].add(times)
    assert max(seen["wiki"]) - min(seen["wiki"]) <= 1 and max(seen["code"]) == 1
    lines = corpus.describe_sources(np.ones(len(corpus.shards)))
    assert lines["- wiki"].startswith("50.0% of an epoch, its ") and list(lines) == [
        "- wiki",
        "- code",
        "- mail",
    ]


def write_forms(folder: Path, texts: list[str]) -> dict[str, dict[str, Any]]:
    """One text in every form; `data:` keys of each."""
    rows = [{"body": text, "id": number} for number, text in enumerate(texts)]
    plain = "\n\n".join(text.replace("\n", " ") for text in texts)
    (folder / "a.md").write_text(plain)
    (folder / "a.md.gz").write_bytes(gzip.compress(plain.encode()))
    with (folder / "a.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["id", "body"])
        table.writeheader()
        table.writerows(rows)
    for suffix in ("", ".gz", ".zst"):
        with pyarrow.output_stream(str(folder / f"a.jsonl{suffix}"), compression="detect") as out:
            out.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    with pyarrow.output_stream(str(folder / "a.csv.zst"), compression="detect") as out:
        out.write((folder / "a.csv").read_bytes())
    (folder / "a.json").write_text(json.dumps(rows))
    tables = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(tables, folder / "a.parquet", row_group_size=7)
    keyed = {"text_key": "body"}
    names = "a.csv a.csv.zst a.jsonl a.jsonl.gz a.jsonl.zst a.json a.parquet".split()
    forms: dict[str, Any] = {name: {"source": str(folder / name), **keyed} for name in names}
    return {name: {"documents": form} for name, form in forms.items()} | {
        name: {"documents": str(folder / name), "article": "blank_line"}
        for name in ("a.md", "a.md.gz")
    }


def test_every_form_gives_the_same_tokens(tmp_path: Path) -> None:
    texts = [text.replace("\n", " ") for text in contexts(60)]
    texts[3] = 'A "quoted" word, a comma; é.'
    for name, data in write_forms(tmp_path, texts).items():
        for shard_mib in (0.001, 1):
            values = {**data, "tokenizer": "?", "cache_dir": str(tmp_path / "cache")}
            values |= {"shard_mib": shard_mib, "validation_fraction": 0}
            folder = writer.write_shards(
                parse_documents_config(values), byte_tokenizer(), kind_of(), processes=1
            )
            assert read_back(Path(folder), "train") == texts, (name, shard_mib)


def kind_of() -> Any:
    from detalbert.corpus.documents import DocumentKind

    return DocumentKind(byte_tokenizer().eos_token_id)


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
    assert warned == [f"data.documents: passed over: {folder / 'c.pdf'}"]


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
    writer.Target(tmp_path, "s3://b/x/").move(["a.bin"], "jobs/0.json")
    assert sent == ["a.bin", "jobs/0.json"] and not any(tmp_path.iterdir())
    for address in ("s3://bucket", "file:///x", "s3:/b/x"):
        with pytest.raises(UserError, match=f"^{address}: give s3://BUCKET/PATH"):
            writer.Target.of(address, "")


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
