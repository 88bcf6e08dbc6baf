"""What a task finds in its container: the uploaded files, and data and models that they name."""

import pytest

from tests.cluster.planted import problems


@pytest.fixture
def folder(tmp_path):
    """A folder to be uploaded, of which .detignore leaves some out."""
    for name in ("own.csv", "sub/a.csv", "data/mine.csv", "data/b.csv", "runs/local/a", "own/b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / ".detignore").write_text("/data/\n!/data/b.csv\n/runs/\n")
    return tmp_path


SOURCES = {
    "own.csv": "",
    "sub/*.csv": "",
    "sub": "",
    "generated": "",
    "squad_v2": "",
    "train-v2.0.json": "",
    "s3://bucket/mine.csv": "",
    "/mnt/mine.csv": "",
    "mounted/mine.csv": "",
    "data/mine.csv": "is not uploaded: .detignore leaves it out; move it, to questions/",
    "data/b.csv": "data/b.csv is not uploaded",  # as its folder is left out
    "gone.csv": "gone.csv: no such file in ",
    "./gone.jsonl.gz": "no such file in ",
}
MODELS = {
    "albert-base-v2": "",
    "org/name@refs/pr/1": "",
    "own": "",
    "./own/": "",
    "runs/local": "runs/local is not uploaded: .detignore leaves it out; move it",
    "./gone": "./gone: no such file in ",
    "/mnt/model": "",
    "mounted/model": "",
}
KEYS = {
    "data.train": SOURCES,
    "data.text": SOURCES,
    "hyperparameters.model": MODELS,
    "data.tokenizer": MODELS,
}
CASES = [(key, *row) for key, rows in KEYS.items() for row in rows.items()]


@pytest.mark.parametrize(("key", "address", "problem"), CASES)
def test_what_a_container_will_not_have(key, address, problem, folder):
    section, name = key.split(".")
    mixture = [{"source": address, "weight": 1}]
    config = {
        "entrypoint": "python3 train.py",
        "bind_mounts": [{"host_path": "/mnt", "container_path": "mounted"}],
        "hyperparameters": {},
        "data": {} if name in ("train", "text") else {"shards": "s3://b"},
    }
    config[section][name] = mixture if name == "text" else address
    details = problems(config, folder=folder)
    missing = details.get(key, "")
    if problem:
        assert problem in missing
    else:
        assert "uploaded" not in missing
        assert "no such file" not in missing


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--model model:a:1 --data own.csv", ""),
        ("--model=trial:7 --data=dev-v2.0.json", ""),
        ("--model runs --data own.csv", "runs is not uploaded"),
        ("--model model:a --data 'gone.csv'", "gone.csv: no such file"),
    ],
)
def test_files_that_a_prediction_names(words, problem, folder):
    details = problems({"entrypoint": f"python3 predict.py {words}"}, folder=folder)
    assert details.get("entrypoint", "").startswith(problem)
    assert ("entrypoint" in details) is bool(problem)
