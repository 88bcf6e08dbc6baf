"""`LmTrial` against a plain loop; compiled layers: rows of any length on one code, restarts."""

import functools
from unittest.mock import Mock

import pytest
import torch
import yaml
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from detalbert.errors import UserError
from lm.gradients import accumulate, compile_layers
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model
from lm.packed import NO_TARGET
from tests.conftest import TINY_LM, configured, in_soak
from tests.engine.trials import config_file, trial_of
from tests.fakes.encoders import broken_compiler, use_kernel
from tests.fakes.runs import change
from tests.lm.ranks import CPU, SEED, documents_sums, rows_of, start, tiny, whole, windows
from tests.lm.test_trial import KEEP_ALL, back_to
from tests.same_bits import differences

STEPS = 24
WARMUP_STEPS = 6
PEAK_RATE = 0.01
LENGTH = 32
compile_layer = torch.compile


def compile_with(backend, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(compile_layer, backend=backend))


def windows_of(row, end):
    """Unpack a row: the tokens of each window, and the lengths of its documents' segments."""
    unpacked = []
    inputs = row["input_ids"].split(LENGTH)
    targets = row["targets"].split(LENGTH)
    for window_inputs, window_targets in zip(inputs, targets, strict=True):
        window = torch.cat([window_inputs, window_targets[-1:]])
        document_ends = (window[:-1] == end).nonzero()[:, 0] + 1
        segments = window.tensor_split(document_ends.tolist())
        unpacked.append((window, torch.tensor([len(segment) for segment in segments])))
    return unpacked


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_products_are_of_the_precision_that_is_set(precision, tmp_path, cache_dir):
    path = config_file(tmp_path, TINY_LM, cache_dir, precision=precision)
    with trial_of(path) as trial:
        # On one process, too, weights that are gathered in half precision are DTensors.
        weight = next(trial.model.parameters())
        assert isinstance(weight, DTensor) == (precision == "bf16")


def plain_losses(
    config,
    weights,
    end,
    steps,
):
    """The losses of a plain loop: each document alone, eager attention, torch's AdamW."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()
    model.load_state_dict(weights)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step, rows in enumerate(steps):
        step_windows = []
        for row in rows:
            step_windows += windows_of(row, end)
        loss_sum, _, targets = documents_sums(model, step_windows)
        loss = loss_sum / targets
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        # Linear warm-up, then linear decay to 0.
        warmup = step / WARMUP_STEPS
        decay = (STEPS - step) / (STEPS - WARMUP_STEPS)
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(warmup, decay)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("backend", "recomputed"), [(None, "none"), in_soak("eager", 0.5), in_soak("inductor", 0.5)]
)
def test_a_plain_loop_has_the_same_losses(backend, recomputed, cache_dir, tmp_path, monkeypatch):
    compile_with(backend, monkeypatch)
    if backend == "eager":
        use_kernel(monkeypatch)
    path = config_file(
        tmp_path,
        TINY_LM,
        cache_dir,
        max_steps=STEPS,
        warmup_fraction=WARMUP_STEPS / STEPS,
        max_grad_norm=1.0,
        compile=backend is not None,
        activation_checkpointing=recomputed,
    )
    with trial_of(change(path, model_config={"attention_dropout": 0.0})) as trial:
        weights = {name: whole(tensor) for name, tensor in trial.model.state_dict().items()}
        batches = iter(trial.build_training_data_loader())
        steps = [next(batches) for _ in range(STEPS)]
        losses = []
        for step, rows in enumerate(steps):
            trial.train_batch(rows, 0, step)
            trial.schedule.step()
            loss_sum, _, targets = trial.meter.sums[-1]
            losses.append(float(loss_sum / targets))
        end = trial.data.tokenizer.eos_token_id
        expected = plain_losses(trial.model.config, weights, end, steps)

    assert losses == pytest.approx(expected, abs=1e-4)
    assert losses[-1] < losses[0] - 1
    rows = [row for rows in steps for row in rows]
    assert any((row["targets"] == NO_TARGET).any() for row in rows)  # several documents


def run_rows(family, layout):
    """The graphs that were traced after the dummy rows, and after rows of other lengths."""
    graphs = []

    def trace(graph, _):
        graphs.append(graph)
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        compile_with(trace, patch)
        use_kernel(patch)
        mesh = make_mesh(layout, CPU)
        config = tiny(family)
        plain = build_causal_model(config, mesh, SEED, recomputed=0.5)
        compiled = build_causal_model(config, mesh, SEED, recomputed=0.5, compiled_tokens=64)
        compile_layers(compiled, 2, 32, layout)
        assert all(parameter.grad is None for parameter in compiled.parameters())
        after_dummy_rows = len(graphs)

        for count in (1, 2, 1) if layout.tensor > 1 else (1, 2, 5, 9):
            rows = rows_of(windows(count, count), per_row=count)
            sums = accumulate(compiled, rows, layout)
            torch.testing.assert_close(sums, accumulate(plain, rows, layout))
        parameters = zip(compiled.parameters(), plain.parameters(), strict=True)
        for parameter, plain_parameter in parameters:
            torch.testing.assert_close(whole(parameter.grad), whole(plain_parameter.grad))

        compile_with(broken_compiler, patch)
        broken = build_causal_model(config, mesh, SEED, compiled_tokens=64)
        with pytest.raises(UserError, match=r"hyperparameters\.compile: .*Failed to find C comp"):
            compile_layers(broken, 2, 32, layout)
    return [after_dummy_rows, len(graphs)]


@pytest.mark.parametrize(
    ("family", "layout", "graphs"), [("gpt2", Layout(), 2), in_soak("llama", Layout(tensor=2), 3)]
)
def test_rows_of_any_length_run_on_code_that_is_compiled_once(
    family, layout, graphs, tmp_path, fork
):
    """By a stand-in for the GPU's kernel. A dummy row has as many tokens as the hidden size."""
    traced = start(run_rows, layout.slots, tmp_path, family, layout)
    assert traced == [[graphs, graphs]] * layout.slots


@pytest.mark.parametrize("compiled", [True, False])
def test_layers_are_compiled_for_the_longest_row(compiled, cache_dir, tmp_path, monkeypatch):
    layers = Mock()
    dummy_row = Mock()
    monkeypatch.setattr("lm.model._compile", layers)
    monkeypatch.setattr("lm.trial.compile_layers", dummy_row)
    sizes = {"max_seq_length": 32, "max_tokens_per_forward": 100}
    with trial_of(config_file(tmp_path, TINY_LM, cache_dir, compile=compiled, **sizes)):
        pass
    assert [call.kwargs["longest"] for call in layers.call_args_list] == [96] * compiled
    rows = [(call.kwargs["windows"], call.kwargs["length"]) for call in dummy_row.call_args_list]
    assert rows == [(3, 32)] * compiled


@pytest.mark.soak  # each of four starts compiles
@pytest.mark.parametrize("layout", [{"shard": 2}, {"tensor": 2}], ids=str)
def test_a_compiled_run_of_two_processes_goes_on_as_if_never_cut(
    layout, cache_dir, train, tmp_path
):
    config = configured(
        TINY_LM, cache_dir, compile=True, activation_checkpointing=0.5, layout=layout
    )
    config["checkpoint_storage"] = KEEP_ALL
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))

    def run(output):
        """Train into `output`, with compiled code of its own; what is logged."""
        kernels = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"{output.name}.kernels")}
        ended = train("--config", path, "--output-dir", output, processes=2, **kernels)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr

    run(tmp_path / "out")
    cut = back_to(tmp_path / "out", 4, tmp_path / "cut")
    logged = run(cut)
    assert "resumed at step 4 of 12" in logged, logged
    assert differences(tmp_path / "out", cut) == []
