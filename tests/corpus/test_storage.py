"""Text and shards from S3's protocol on loopback, slow, failing and cut off on purpose."""

import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detalbert.corpus import reader as corpus_module
from detalbert.corpus import storage
from detalbert.corpus.reader import Corpus
from detalbert.corpus.sources import documents, open_text
from detalbert.errors import Unavailable, UserError
from detalbert.squad.tokenizer import named_tokenizer
from pretrain.examples import ExampleOrder, Examples, train_loader
from pretrain.hparams import parse_pretrain_hparams
from pretrain.masking import read_vocabulary
from tests.corpus.test_writer import TOKENIZER, contexts, data, write

moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
boto3 = pytest.importorskip("boto3")


class Faults(ThreadingHTTPServer):
    """Between the reader and moto: hands requests on, and spoils every answer that it likes to."""

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.dice = upstream, random.Random(0)
        self.kinds: list = []
        self.done = {"500": 0, "truncated": 0, "slow": 0}
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Faults
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        kinds = self.server.kinds if ".bin" in self.path or ".txt" in self.path else []
        kind = self.server.dice.choice(kinds) if kinds else "fine"
        if kind in self.server.done:
            self.server.done[kind] += 1
        if kind == "500":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        passed = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        request = urllib.request.Request(self.server.upstream + self.path, headers=passed)
        try:
            answer = urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            answer = error
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "slow":
            time.sleep(0.05)
        if kind == "truncated":
            body = body[: len(body) // 2]
            self.close_connection = True
        self.wfile.write(body)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """(client, faults): moto behind a proxy that can spoil answers."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="bucket")
    faults = Faults(f"http://{host}:{port}")
    threading.Thread(target=faults.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", faults.url)
    storage._s3.cache_clear()
    corpus_module.read_index.cache_clear()
    yield client, faults
    faults.shutdown()
    faults.server_close()
    server.stop()
    storage._s3.cache_clear()
    corpus_module.read_index.cache_clear()


def upload(client: Any, folder: Path) -> None:
    for path in [*folder.glob("*.bin"), *folder.glob("*.npy"), folder / "index.json"]:
        client.put_object(Bucket="bucket", Key=f"shards/{path.name}", Body=path.read_bytes())


def test_streaming_with_faults_loses_and_repeats_nothing(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    (tmp_path / "a.txt").write_text("\n".join(contexts(700)))
    folder = write(tmp_path / "a.txt", tmp_path, shard_mib=0.01)
    upload(client, folder)
    faults.kinds = ["fine", "slow", "500", "truncated"]
    hparams = parse_pretrain_hparams({"size": "tiny", "max_seq_length": 96})
    vocabulary = read_vocabulary(named_tokenizer(TOKENIZER))
    small = {"cache_gib": 0.00003, "shuffle_shards": 2}  # two or three shards: they are evicted
    seen = {}
    for where in (str(folder), "s3://bucket/shards"):
        config = data("generated", tmp_path, **small)
        examples = Examples(Corpus(where, "train", config), vocabulary, hparams)
        order = ExampleOrder(examples, 8, 1, seed=1, group=2)
        loader = iter(train_loader(examples, order, 0, 0, 512, 0, False))
        steps = len(examples.lengths) // 8
        rows = [row for _ in range(steps) for row in next(loader)]
        seen[where] = rows
    assert len(examples.corpus.shards) >= 6
    assert sum(faults.done.values()) > 5 and all(faults.done.values()), faults.done
    here, there = seen.values()
    assert len(here) == len(there)
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one["input_ids"], other["input_ids"])
        assert np.array_equal(one["windows"], other["windows"])
    numbers = np.concatenate([row["windows"] for row in there])
    assert len(set(numbers.tolist())) == len(numbers) == steps * 8
    cached = list((tmp_path / "cache").glob("fetched-*/*.bin"))
    assert 0 < len(cached) < len(examples.corpus.shards)


def test_text_is_read_through_faults(s3: Any, tmp_path: Path) -> None:
    client, faults = s3
    texts = contexts(60)
    client.put_object(Bucket="bucket", Key="text/1.txt", Body="\n".join(texts[:30]).encode())
    client.put_object(Bucket="bucket", Key="text/2.txt", Body="\n".join(texts[30:]).encode())
    client.put_object(Bucket="bucket", Key="textbook.txt", Body=b"Not below text/.")
    faults.kinds = ["fine", "500", "truncated"]
    spans = open_text("s3://bucket/text", "data.text", 1500, "train").spans
    assert [text for span in spans for text, _ in documents(span)] == texts
    assert faults.done["truncated"] and faults.done["500"]


def test_what_cannot_be_read_is_one_line(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, faults = s3
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    with pytest.raises(UserError, match="data.text: no .txt"):
        open_text("s3://bucket/nothing", "data.text", 100, "train")
    with pytest.raises(UserError, match="no index.json"):
        Corpus("s3://bucket/nothing", "train", data("generated", tmp_path))
    (tmp_path / "a.txt").write_text("\n".join(contexts(30)))
    folder = write(tmp_path / "a.txt", tmp_path)
    upload(client, folder)
    name = json.loads((folder / "index.json").read_text())["splits"]["train"]["shards"][0]["name"]
    content = bytearray((folder / name).read_bytes())
    content[10] ^= 1  # as long as it was, but another
    client.put_object(Bucket="bucket", Key=f"shards/{name}", Body=bytes(content))
    corpus = Corpus("s3://bucket/shards", "train", data("generated", tmp_path))
    with pytest.raises(UserError, match="not the bytes that were written"):
        corpus.example(0)
    faults.kinds = ["500"]
    with pytest.raises(Unavailable, match="not read after"):
        corpus.example(0)
    assert not list((tmp_path / "cache").glob("fetched-*/*.bin"))
