"""What predict.py costs over its model, and how much memory it takes as the file grows.

    python -m benchmarks predict        # a quarter of an hour on two cores

The embedded model on questions of the embedded world; on a GPU an albert-xxlarge, or `--shape`. The
weights of the span head, or all, are random, which costs the same.
`ratio` is the whole of `predict`, from the file to the files, over the forward passes
alone on the same packed rows, made beforehand; medians over turns taken alternately.
`peak_mib` is the greatest resident memory of a `predict.py` process, by number of questions.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.measure import ROOT, Options, interleave, memory_of_process
from benchmarks.shapes import SHAPES, device_of, shape_of
from detalbert.engine.rows import to_device
from detalbert.inference import answering, predict_file
from detalbert.inference.export import export
from detalbert.inference.model import Trained, load_model
from detalbert.settings.hparams import parse_hparams
from detalbert.squad import world
from detalbert.squad.question_stream import read_questions

SMALL, LARGE = 2_000, 20_000  # questions, and windows: one each
QUESTIONS_A_PARAGRAPH = 6
_LOOK = 0.02  # seconds between looks at a process's memory


def write_questions(path: Path, count: int) -> Path:
    """At least `count` questions as SQuAD JSON."""
    document = world.generate("train", seed=2, paragraphs=-(-count // QUESTIONS_A_PARAGRAPH))
    path.write_text(json.dumps(document))
    return path


def shape_to_answer(options: Options) -> str:
    """A key of SHAPES, or embedded: what `auto` is on a CPU."""
    on_cpu = device_of(options).type == "cpu"
    return "embedded" if options.shape == "auto" and on_cpu else shape_of(options)


def write_model(folder: Path, shape: str = "embedded") -> Path:
    """A model for `load_model`: a random one, or the embedded one with a random span head."""
    source = ROOT / "embedded" / "albert-tiny"
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    kind = transformers.AutoModelForQuestionAnswering
    if shape == "embedded":
        model = kind.from_pretrained(source)
    else:
        config = transformers.AlbertConfig(vocab_size=len(tokenizer), **SHAPES[shape])
        model = kind.from_config(config)
    hparams = {"model": "embedded/albert-tiny", "max_seq_length": 192, "doc_stride": 64}
    export(Trained(model, tokenizer, parse_hparams(hparams), None, {}, {}, None), folder)
    return folder


@torch.no_grad()
def run_forward(model: Trained, rows: list[Any]) -> None:
    for row in rows:
        model.forward(to_device(row, model.forward.device))


def peak_mib(model: Path, questions: Path, folder: Path) -> float:
    """Greatest resident memory of a process that answers `questions`."""
    command = [sys.executable, str(ROOT / "predict.py"), "--model", str(model)]
    command += ["--data", str(questions), "--output-dir", str(folder)]
    greatest = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            greatest = max(greatest, memory_of_process("VmHWM", process.pid))
            time.sleep(_LOOK)
    if process.returncode:
        raise RuntimeError(f"predict.py ended with status {process.returncode}")
    return greatest / 2**20


def predict(options: Options) -> dict[str, Any]:
    """Ratio, medians and spread in seconds, and peak memory in MiB."""
    shape = shape_to_answer(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = write_questions(folder / "small.json", SMALL)
        large = write_questions(folder / "large.json", LARGE)
        peaks = {
            count: peak_mib(write_model(folder / f"model-{count}", shape), path, folder / "out")
            for count, path in ((SMALL, small), (LARGE, large))
        }
        model = load_model(str(folder / f"model-{LARGE}"))
        examples = list(read_questions(large))
        parts = [examples[i : i + answering.CHUNK] for i in range(0, LARGE, answering.CHUNK)]
        rows = [row for part in parts for row in answering.featurise(model, part).rows]
        windows = sum(len(row["windows"]) for row in rows)
        run_forward(model, rows[:20])  # burn in
        sides = {
            "forward": partial(run_forward, model, rows),
            "predict": partial(predict_file.predict, model, str(large), folder / "out", 0.0),
        }
        seconds = interleave(sides, options.repeats, model.forward.device, warm_up=0)
    middle = {side: float(np.median(values)) for side, values in seconds.items()}
    return {
        "model": shape,
        "windows": windows,
        "ratio": middle["predict"] / middle["forward"],
        "seconds": middle,
        "spread": {side: [min(values), max(values)] for side, values in seconds.items()},
        "windows_per_second": windows / middle["predict"],
        "peak_mib": peaks,
    }
