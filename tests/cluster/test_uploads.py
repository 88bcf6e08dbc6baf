"""What a task finds in its container: the uploaded files, and data and models that they name."""

import pytest

from cluster.configs import uploads


def test_context_that_is_too_large(monkeypatch, tmp_path):
    assert uploads.CONTEXT_LIMIT == 95 * 2**20
    (tmp_path / "weights.bin").write_bytes(bytes(3000))
    monkeypatch.setattr(uploads, "CONTEXT_LIMIT", 2000)
    names, finding = uploads.read_upload(tmp_path)
    assert names == set()
    assert ".detignore" in finding.detail

    (tmp_path / ".detignore").write_text("*.bin\n")
    assert uploads.read_upload(tmp_path) == (set(), None)


SOURCES = {
    "own.csv": None,
    "sub/*.csv": None,
    "sub": None,
    "generated": None,
    "squad_v2": None,
    "train-v2.0.json": None,
    "s3://bucket/mine.csv": None,
    "/mnt/mine.csv": None,
    "data/mine.csv": "is not uploaded: .detignore leaves it out; move it, to questions/mine.csv",
    "gone.csv": "gone.csv: no such file in ",
    "./gone.jsonl.gz": "no such file in ",
}


@pytest.mark.parametrize("source", SOURCES)
def test_data_that_a_container_will_not_have(source, tmp_path):
    for name in ("own.csv", "sub/a.csv", "data/mine.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("question,context\n")
    (tmp_path / ".detignore").write_text("/data/\n")
    names, _ = uploads.read_upload(tmp_path)
    for data in ({"train": source}, {"text": [{"source": source, "weight": 1}]}):
        config = {"entrypoint": "python3 train.py", "data": data}
        problems = [finding.detail for finding in uploads.check_data(config, names, tmp_path)]
        if SOURCES[source] is None:
            assert problems == []
        else:
            (problem,) = problems
            assert SOURCES[source] in problem


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("albert-base-v2", None),
        ("org/name@refs/pr/1", None),
        ("own", None),
        ("./own/", None),
        ("runs/local", "runs/local is not uploaded: .detignore leaves it out; move it"),
        ("./gone", "./gone: no such file in "),
        ("a/b/gone", "a/b/gone: no such file in "),
        ("/mnt/model", None),
        ("mounted/model", None),
    ],
)
def test_models_and_tokenizers_that_a_container_will_not_have(address, problem, tmp_path):
    for name in ("own/config.json", "runs/local/config.json", "mounted/model/config.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / ".detignore").write_text("/runs/\n/mounted/\n")
    names, _ = uploads.read_upload(tmp_path)
    configs = {
        "hyperparameters.model": {"hyperparameters": {"model": address}},
        "data.tokenizer": {"data": {"tokenizer": address, "text": "s3://bucket/text"}},
    }
    mounts = [{"host_path": "/mnt", "container_path": "mounted"}]
    for key, config in configs.items():
        config = {**config, "entrypoint": "python3 train.py", "bind_mounts": mounts}
        problems = list(uploads.check_data(config, names, tmp_path))
        assert [finding.key for finding in problems] == ([key] if problem else [])
        for finding in problems:
            assert finding.detail.startswith(problem)


def test_files_that_a_prediction_names(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "model.safetensors").write_text("")
    (tmp_path / "own.csv").write_text("question,context\n")
    (tmp_path / ".detignore").write_text("/runs/\n")
    names, _ = uploads.read_upload(tmp_path)
    for words, keys in (
        ("--model model:a:1 --data own.csv", []),
        ("--model=trial:7 --data=dev-v2.0.json", []),
        ("--model runs --data 'gone.csv'", ["entrypoint", "entrypoint"]),
    ):
        config = {"entrypoint": f"python3 predict.py {words}"}
        problems = uploads.check_data(config, names, tmp_path)
        assert [finding.key for finding in problems] == keys
