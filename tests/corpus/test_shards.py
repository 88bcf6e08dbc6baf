"""What a killed writer leaves beside the shards."""

from pathlib import Path

from detalbert.corpus.shards import sweep


def test_the_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    """Those of earlier versions too: .piece-*, and files that end in a process number."""
    (tmp_path / "jobs").mkdir()
    kept = {".lock", "plan.json", "train-00000.bin", "train-lengths.npy", "jobs/00000.json"}
    left = {
        ".chunk-00000-00001.npz", "..chunk-00000-00002.npz.x1", ".train-00001.bin.x1",
        ".train-lengths.npy.x1", ".index.json.x1", "jobs/.00001.json.x1",
        ".piece-00000-00001.npz", ".piece-00000-00002.npz.77", ".train-00001.bin.77",
    }  # fmt: skip
    for name in kept | left:
        (tmp_path / name).touch()
    sweep(tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert files == kept
