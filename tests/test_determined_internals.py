"""Private names of Determined are those of the installed version; nothing leaves a download."""

import inspect

import boto3  # noqa: F401
import determined
from determined import core, experimental, pytorch, util

import detalbert.engine.determined_internals  # noqa: F401

LOOP, CHECKPOINTS = pytorch._PyTorchTrialController, core.CheckpointContext
CONTEXT = pytorch.PyTorchTrialContext
SIGNATURES = {
    LOOP._step_batch: ["self"],
    LOOP._stop_requested: ["self"],
    LOOP._steps_until_complete: ["self", "train_unit"],
    LOOP._checkpoint: ["self", "already_exiting"],
    LOOP._load: ["self", "load_path"],
    LOOP._load_state: ["self", "state"],
    LOOP._save: ["self", "path"],
    CHECKPOINTS._upload_sharded: ["self", "ckpt_dir", "storage_id", "metadata", "selector"],
    CHECKPOINTS._report_checkpoint: ["self", "storage_id", "resources", "metadata"],
    util.write_user_code: ["path", "on_cluster"],
    pytorch.Batch.should_stop: ["self", "step_num"],
    pytorch._ShouldExit: ["skip_exit_checkpoint"],
    LOOP: "trial_inst context checkpoint_period validation_period reporting_period "
    "smaller_is_better steps_completed latest_checkpoint local_training test_mode "
    "searcher_metric_name checkpoint_policy step_zero_validation max_length global_batch_size "
    "profiling_enabled".split(),
}  # fmt: skip
# Where a name is called, or an attribute set that is read there.
USES = {
    LOOP: "_step_batch _stop_requested _steps_until_complete _checkpoint _load _save _ShouldExit "
    "should_stop".split(),
    CONTEXT: "_core _exp_conf _PyTorchDistributedDataParallel _current_batch_idx".split(),
    CHECKPOINTS: "_dist _storage_manager _upload_sharded _report_checkpoint".split(),
    determined.TrialInfo: ["_config"],
    experimental.Model: ["_session"],
}


def test_names_and_signatures_are_as_used():
    for function, names in SIGNATURES.items():
        assert list(inspect.signature(function).parameters) == names, function
    for owner, names in USES.items():
        source = inspect.getsource(owner)
        assert [name for name in names if name not in source] == [], owner
