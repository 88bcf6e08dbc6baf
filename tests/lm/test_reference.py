"""`LmTrial` against a plain loop; compiled layers: rows of any length on one code, restarts."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from detalbert.errors import UserError
from lm.gradients import accumulate, compile_layers
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model
from tests.conftest import TINY_LM
from tests.engine.trials import config_file, trial_of
from tests.fakes.encoders import broken_compiler, use_kernel
from tests.fakes.runs import change
from tests.lm.ranks import CPU, documents_sums, rows_of, start, tiny, whole, windows
from tests.lm.test_trial import back_to
from tests.same_bits import differences

STEPS, WARM, PEAK, LENGTH = 24, 6, 0.01, 32
compile_layer = torch.compile


def compile_with(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(compile_layer, backend=backend))


def plain_losses(config: Any, weights: dict[str, Any], end: int, steps: list[Any]) -> list[float]:
    """The losses of a plain loop: each document alone, eager attention, torch's AdamW."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    model.load_state_dict(weights)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step, rows in enumerate(steps):
        made = []
        for row in rows:
            inputs, nexts = (row[name].split(LENGTH) for name in ("input_ids", "targets"))
            for tokens, wanted in zip(inputs, nexts, strict=True):
                window = torch.cat([tokens, wanted[-1:]])
                ends = (window[:-1] == end).nonzero()[:, 0] + 1
                made.append((window, torch.tensor([*map(len, window.tensor_split(ends.tolist()))])))
        sums = documents_sums(model, made)
        loss = sums[0] / sums[2]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(step / WARM, (STEPS - step) / (STEPS - WARM))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


INDUCTOR = pytest.param("inductor", 0.5, marks=pytest.mark.soak)  # a minute


@pytest.mark.parametrize("backend, recomputed", [(None, "none"), ("eager", 0.5), INDUCTOR])
def test_a_plain_loop_has_the_same_losses(backend, recomputed, cache_dir, tmp_path, monkeypatch):
    compile_with(backend, monkeypatch)
    if backend == "eager":
        use_kernel(monkeypatch)
    keys = {"max_steps": STEPS, "warmup_fraction": WARM / STEPS, "max_grad_norm": 1.0}
    keys |= {"compile": backend is not None, "activation_checkpointing": recomputed}
    path = config_file(tmp_path, TINY_LM, cache_dir, **keys)
    with trial_of(change(path, model_config={"attention_dropout": 0.0})) as trial:
        weights = {name: w.full_tensor().clone() for name, w in trial.model.state_dict().items()}
        batches = iter(trial.build_training_data_loader())
        steps = [next(batches) for _ in range(STEPS)]
        losses = []
        for step, rows in enumerate(steps):
            trial.train_batch(rows, 0, step)
            trial.schedule.step()
            losses.append(float(trial.meter.sums[-1][0] / trial.meter.sums[-1][2]))
        end = trial.data.tokenizer.eos_token_id
        plain = plain_losses(trial.model.config, weights, end, steps)
    assert losses == pytest.approx(plain, abs=1e-4)
    assert losses[-1] < losses[0] - 1 and sum((row["targets"] < 0).sum() for row in steps[0]) > 0


def run_rows(family: str, layout: Layout) -> list[int]:
    """The graphs that were traced after the dummy rows, and after rows of other lengths."""
    traced: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        compile_with(lambda graph, _: traced.append(graph) or graph.forward, patch)
        use_kernel(patch)
        mesh = make_mesh(layout, CPU)
        plain, compiled = (
            build_causal_model(tiny(family), mesh, 7, recomputed=0.5, compiled_tokens=most)
            for most in (0, 64)
        )
        compile_layers(compiled, 2, 32, layout)
        assert not any(p.grad is not None for p in compiled.parameters())
        first = len(traced)
        for number in (1, 2, 1) if layout.tensor > 1 else (1, 2, 5, 9):
            rows = rows_of(windows(number, number), number)
            torch.testing.assert_close(
                *(accumulate(each, rows, layout) for each in (plain, compiled))
            )
        for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
            torch.testing.assert_close(whole(one.grad), whole(other.grad))
        compile_with(broken_compiler, patch)
        model = build_causal_model(tiny(family), mesh, 7, compiled_tokens=64)
        with pytest.raises(UserError, match=r"hyperparameters\.compile: .*Failed to find C comp"):
            compile_layers(model, 2, 32, layout)
    return [first, len(traced)]


@pytest.mark.parametrize(
    "family, layout, graphs", [("gpt2", Layout(), 2), ("llama", Layout(tensor=2), 3)]
)
def test_rows_of_any_length_run_on_code_that_is_compiled_once(
    family, layout, graphs, tmp_path, fork
):
    """By a stand-in for the GPU's kernel. A dummy row has as many tokens as the hidden size."""
    found = start(run_rows, layout.slots, tmp_path, family, layout)
    assert found == [[graphs, graphs]] * layout.slots


@pytest.mark.soak  # each of four starts compiles
@pytest.mark.parametrize("layout", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_a_compiled_run_of_two_processes_goes_on_as_if_never_cut(
    layout, cache_dir, train, tmp_path
):
    keys = {"compile": True, "activation_checkpointing": 0.5, "layout": layout}
    path = config_file(tmp_path, TINY_LM, cache_dir, **keys)
    values = yaml.safe_load(path.read_text()) | {"checkpoint_storage": {"save_trial_latest": 9}}
    path.write_text(yaml.safe_dump(values))

    def run(output: Path) -> Any:  # each compiles its own
        kernels = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"{output.name}.kernels")}
        return train("--config", path, "--output-dir", output, processes=2, **kernels)

    assert (done := run(tmp_path / "out")).returncode == 0, done.stderr
    cut = back_to(tmp_path / "out", 4, tmp_path / "cut")
    done = run(cut)
    assert done.returncode == 0 and "resumed at step 4 of 12" in done.stderr, done.stderr
    assert differences(tmp_path / "out", cut) == []
