"""Time of predict.py relative to its model's forward passes, and its memory as the file grows.

python -m benchmarks predict        # a quarter of an hour on two cores

The embedded model with a random span head on generated questions; on a GPU an albert-xxlarge, or
`--shape`. `predict` includes reading and writing files. `peak_mib` is by number of questions.
"""

import json
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.measure import ROOT, SHAPES, device, interleave, run_python, shape_of
from detalbert.engine.rows import to_device
from detalbert.inference import answering, predict_file
from detalbert.inference.export import export
from detalbert.inference.model import Trained, load_model
from detalbert.settings.hparams import parse_hparams
from detalbert.squad import world
from detalbert.squad.sources import read_questions

SMALL, LARGE = 2_000, 20_000  # questions, and windows: one each
# Runs predict.py and prints its peak memory in KiB: that of a child counts its parent's.
PEAK = """import predict, resource, sys
status = predict.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(status)"""


def write_questions(path: Path, count: int) -> Path:
    """Write at least `count` questions as SQuAD JSON."""
    path.write_text(json.dumps(world.generate("train", seed=2, paragraphs=-(-count // 6))))
    return path


def write_model(folder: Path, shape: str = "embedded") -> Path:
    """Write a model for `load_model`: a random one, or the embedded one with a random head."""
    source = ROOT / "embedded" / "albert-tiny"
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    kind = transformers.AlbertForQuestionAnswering
    if shape == "embedded":
        model = kind.from_pretrained(source)
    else:
        sizes: dict[str, Any] = {"vocab_size": len(tokenizer), **SHAPES[shape]}
        model = kind(transformers.AlbertConfig(**sizes))
    hparams = {"model": "embedded/albert-tiny", "max_seq_length": 192, "doc_stride": 64}
    forward: Any = None  # not needed for an export
    export(Trained(model, tokenizer, parse_hparams(hparams), forward, {}, {}, None), folder)
    return folder


@torch.no_grad()
def run_forward(model: Trained, rows: list[Any]) -> None:
    for row in rows:
        model.forward(to_device(row, model.forward.device))


def peak_mib(model: Path, questions: Path, folder: Path) -> float:
    """Return the peak resident memory in MiB of a process that answers `questions`."""
    words = ["--model", str(model), "--data", str(questions), "--output-dir", str(folder)]
    return int(run_python("-c", PEAK, *words).split()[-1]) / 1024


def predict(options: Namespace) -> dict[str, Any]:
    """Measure the ratio, medians and spread in seconds, and peak memory in MiB."""
    small = options.shape == "auto" and device().type == "cpu"
    shape = "embedded" if small else shape_of(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = write_model(folder / "model", shape)
        files = {n: write_questions(folder / f"{n}.json", n) for n in (SMALL, LARGE)}
        peaks = {n: peak_mib(path, file, folder / "out") for n, file in files.items()}
        model = load_model(str(path))
        examples = list(read_questions(files[LARGE]))
        chunks = (examples[i : i + answering.CHUNK] for i in range(0, LARGE, answering.CHUNK))
        rows = [row for chunk in chunks for row in answering.featurise(model, chunk).rows]
        run_forward(model, rows[:20])  # burn in
        asked = predict_file.Questions(str(files[LARGE]))
        whole = partial(predict_file.predict, model, asked, folder / "out", 0.0)
        sides: dict[str, Any] = {"forward": partial(run_forward, model, rows), "predict": whole}
        seconds = interleave(sides, options.repeats)
    middle = {side: float(np.median(values)) for side, values in seconds.items()}
    windows = sum(len(row["windows"]) for row in rows)
    spread = {side: [min(values), max(values)] for side, values in seconds.items()}
    result = {"model": shape, "windows": windows, "seconds": middle, "spread": spread}
    result |= {"ratio": middle["predict"] / middle["forward"], "peak_mib": peaks}
    return {**result, "windows_per_second": windows / middle["predict"]}
