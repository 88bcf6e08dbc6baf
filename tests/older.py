"""An exported folder in transformers 4.57: `make soak` installs it beside the environment's own."""

import os
import subprocess
import sys

import pytest
import torch

FOLDER = os.environ.get("OLDER_TRANSFORMERS", "")  # of packages, before the environment's own
# Loads a folder by its class, and writes what both make of a text.
SCRIPT = """
import sys, torch, transformers

assert transformers.__version__.startswith("4.57."), transformers.__version__
class_name, folder, text, out = sys.argv[1:]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ids = tokenizer(text, return_tensors="pt")["input_ids"]
kind = getattr(transformers, class_name)
model, loading = kind.from_pretrained(folder, output_loading_info=True)
assert not loading["missing_keys"] and not loading["mismatched_keys"], loading
with torch.no_grad():
    outputs = model(input_ids=ids).to_tuple()
tensors = [ids, *(value for value in outputs if isinstance(value, torch.Tensor))]
torch.save(tensors, out)
"""


def ids_and_outputs(class_name, folder, text, out):
    """What transformers 4.57 makes of a text: token ids, then the tensors that the model returns.
    Skips the test if it is not installed.
    """
    if not FOLDER:
        pytest.skip("transformers 4.57 is not installed: make soak does it")
    words = [sys.executable, "-c", SCRIPT, class_name, str(folder), text, str(out)]
    environment = {**os.environ, "PYTHONPATH": FOLDER, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(out)
