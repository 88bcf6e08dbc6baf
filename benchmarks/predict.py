"""Time of predict.py relative to its model's forward passes, and its memory as the file grows.

python -m benchmarks predict        # a quarter of an hour on two cores

The embedded model with a random span head on generated questions; on a GPU an albert-xxlarge, or
`--shape`. `predict` includes reading and writing files. `peak_mib` is by number of questions; with
`--examples` it is not measured.
"""

import itertools
import json
import tempfile
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AlbertForQuestionAnswering

from benchmarks.measure import ROOT, SHAPES, Result, device, interleave, run_python, shape_of
from detalbert.engine.rows import Row, to_device
from detalbert.inference import answering, predict_file
from detalbert.inference.export import export
from detalbert.inference.model import Trained, load_model
from detalbert.settings.hparams import parse_hparams
from detalbert.squad import world
from detalbert.squad.questions import read_questions

# Questions, and windows: one each.
SMALL = 2_000
LARGE = 20_000
# Runs predict.py and prints its peak memory in KiB: that of a child counts its parent's.
PEAK = """import predict, resource, sys
status = predict.main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(status)"""


def write_questions(path: Path, count: int) -> Path:
    """Write at least `count` questions as SQuAD JSON: the shipped ones, as often as it takes."""
    shipped = itertools.cycle(world.load_world("train")["data"])
    articles = []
    for number, article in zip(range(-(-count // 60)), shipped, strict=False):  # of 60 questions
        text = json.dumps(article).replace('"id": "', f'"id": "{number}-')
        articles.append(json.loads(text))
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


def write_model(folder: Path, shape: str = "embedded") -> Path:
    """Write a model for `load_model`: a random one, or the embedded one with a random head."""
    source = ROOT / "embedded" / "albert-tiny"
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    if shape == "embedded":
        model = AlbertForQuestionAnswering.from_pretrained(source)
    else:
        config = transformers.AlbertConfig(vocab_size=len(tokenizer), **SHAPES[shape])
        model = AlbertForQuestionAnswering(config)
    hparams = {"model": "embedded/albert-tiny", "max_seq_length": 192, "doc_stride": 64}
    forward: Any = None  # not needed for an export
    trained = Trained(
        model=model,
        tokenizer=tokenizer,
        hparams=parse_hparams(hparams),
        forward=forward,
        scores={},
        data={},
        steps=None,
        name=folder.name,
    )
    export(trained, folder)
    return folder


@torch.no_grad()
def run_forward(model: Trained, rows: list[Row]) -> None:
    for row in rows:
        model.forward(to_device(row, model.forward.device))


def peak_mib(model: Path, questions: Path, folder: Path) -> float:
    """Return the peak resident memory in MiB of a process that answers `questions`."""
    arguments = ["--model", str(model), "--data", str(questions), "--output-dir", str(folder)]
    output = run_python("-c", PEAK, *arguments)
    kib = int(output.split()[-1])
    return kib / 1024


def make_rows(model: Trained, path: Path, count: int) -> list[Row]:
    """Return the packed rows of `count` questions, as predict.py makes them, chunk by chunk."""
    examples = list(read_questions(path))
    rows: list[Row] = []
    for start in range(0, count, answering.CHUNK):
        chunk = examples[start : start + answering.CHUNK]
        rows += answering.featurise(model, chunk).rows
    return rows


def predict(options: Namespace) -> Result:
    """Measure the ratio, medians and spread in seconds, and peak memory in MiB."""
    small = options.shape == "auto" and device().type == "cpu"
    shape = "embedded" if small else shape_of(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = folder / "out"
        path = write_model(folder / "model", shape)
        files = {}
        largest = options.examples or LARGE
        for count in (min(SMALL, largest), largest):
            files[count] = write_questions(folder / f"{count}.json", count)
        # Memory as the file grows: two processes, for which a day with a GPU has no time.
        peaks = {}
        if not options.examples:
            peaks = {count: peak_mib(path, file, output) for count, file in files.items()}

        # The forward passes alone, and all of it: reading, windows, answers and writing.
        model = load_model(str(path))
        rows = make_rows(model, files[largest], count=largest)
        run_forward(model, rows[:20])  # burn in
        questions = predict_file.Questions(str(files[largest]))
        sides: dict[str, Callable[[], object]] = {
            "forward": partial(run_forward, model, rows),
            "predict": partial(predict_file.predict, model, questions, output, 0.0),
        }
        seconds = interleave(sides, repeats=options.repeats)
    medians = {side: float(np.median(values)) for side, values in seconds.items()}
    windows = sum(len(row["windows"]) for row in rows)
    return {
        "model": shape,
        "windows": windows,
        "seconds": medians,
        "spread": {side: [min(values), max(values)] for side, values in seconds.items()},
        "ratio": medians["predict"] / medians["forward"],
        "peak_mib": peaks,
        "windows_per_second": windows / medians["predict"],
    }
