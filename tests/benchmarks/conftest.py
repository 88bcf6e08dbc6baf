"""What makes every stage of the benchmarks short."""

import json

import pytest

from detalbert.squad import world


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags: a folder of few generated questions, few documents, the smallest model."""
    folder = tmp_path_factory.mktemp("squad")
    for name, split in (("train", "train"), ("dev", "validation")):
        (folder / f"{name}.json").write_text(json.dumps(world.generate(split)))
    passages = world.generate("train", seed=4, paragraphs=60)["data"]
    texts = [p["context"] for article in passages for p in article["paragraphs"]]
    (folder / "text.txt").write_text("\n".join(["", *texts]))
    given = {"data": folder, "text": folder / "text.txt", "tokenizer": "embedded/albert-tiny"}
    given |= {"repeats": 1, "examples": 40, "windows": 4, "shape": "tiny"}
    return tuple(word for key, value in given.items() for word in (f"--{key}", str(value)))
