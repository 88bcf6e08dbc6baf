"""Output of `predict.py` for a language model."""

import json
from typing import Any

from detalbert.settings.sections import parse_section
from lm.inference.complete import Sampling, complete
from lm.inference.load import Source, load_model
from lm.inference.perplexity import perplexity


def print_completion(source: Source, prompt: str, given: dict[str, Any], as_json: bool) -> None:
    """Print the text after `prompt` as it is generated, or one line of JSON. `given` are values of
    `Sampling`, whose defaults are used for the others.
    """
    sampling = parse_section(Sampling, "--prompt", given)
    text = ""
    for step in complete(load_model(source), source.tokenizer, prompt, sampling):
        text += step.text
        if not as_json:
            print(step.text, end="", flush=True)
    reply = {"prompt": prompt, "text": text, "ended": step.ended, **vars(sampling)}
    print(json.dumps(reply, ensure_ascii=False) if as_json else "")


def print_perplexity(source: Source, text: str, as_json: bool) -> None:
    """Print the scores, one per line, or one line of JSON."""
    scores = perplexity(source, text)
    if as_json:
        print(json.dumps(scores))
        return
    for name, value in scores.items():
        print(f"{name:24}{f'{value:,}' if isinstance(value, int) else f'{value:.6g}'}")
    limit = source.hparams.max_validation_windows
    if limit and limit < scores["windows"]:
        print(
            f"(a validation of the run takes the first {limit:,} windows: max_validation_windows)"
        )
