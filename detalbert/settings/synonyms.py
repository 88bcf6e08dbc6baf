"""Names by which other trainers call keys, and the keys of this package for them."""

from collections.abc import Iterable

_NAMES = {
    "global_batch_size": "batch_size train_batch_size per_device_train_batch_size bs "
    "per_gpu_train_batch_size effective_batch_size global_batch total_batch_size",
    "base_learning_rate": "lr learning_rate max_lr peak_lr base_lr",
    "epochs": "epoch num_epochs num_train_epochs max_epochs n_epochs",
    "max_steps": "steps num_steps max_train_steps total_steps num_training_steps",
    "max_seq_length": "max_length max_len seq_len seq_length block_size model_max_length",
    "warmup_fraction": "warmup warmup_ratio warmup_proportion",
    "max_grad_norm": "clip grad_clip gradient_clip_norm clip_grad_norm gradient_clipping",
    "weight_decay": "wd l2",
    "optimizer": "optim optimizer_type",
    "beta2": "adam_beta2 betas",
    "precision": "fp16 bf16 amp dtype mixed_precision half torch_dtype",
    "validation_period": "eval_steps eval_every evaluation_strategy eval_strategy eval_interval",
    "checkpoint_period": "save_steps save_every save_strategy save_interval",
    "reporting_period": "logging_steps log_every log_interval",
    "num_workers": "dataloader_num_workers workers",
    "threads": "num_threads",
    "model": "model_name model_name_or_path pretrained_model checkpoint",
    "seed": "random_seed manual_seed",
    "null_score_diff_threshold": "null_threshold threshold",
    "train": "train_file train_data train_path dataset_name dataset",
    "validation": "validation_file eval_file dev dev_file eval test test_file validation_data",
    "max_train_examples": "max_train_samples",
    "max_validation_examples": "max_eval_samples max_eval_examples",
    "max_validation_windows": "max_validation_examples max_eval_samples",
    "tokenizer": "tokenizer_name vocab vocab_file",
    "skip_invalid": "ignore_errors skip_errors",
}
_NOTES = {
    "global_batch_size": " It counts windows over all slots (base_batch_size would change the "
    "learning rate)",
    "base_learning_rate": " It is scaled by global_batch_size / base_batch_size",
    "precision": " It is auto, fp32, bf16 or fp16",
    "warmup_fraction": " It is a fraction of the steps",
    **dict.fromkeys(
        ("validation_period", "checkpoint_period", "reporting_period"), " It counts steps"
    ),
}
_ADVICE = {
    "not needed: global_batch_size is cut into forwards of max_tokens_per_forward tokens": (
        "gradient_accumulation_steps gradient_accumulation accumulation_steps grad_accum "
        "accumulate_grad_batches aggregation_frequency micro_batch_size"
    ),
    "use warmup_fraction, a fraction of the steps": "warmup_steps num_warmup_steps warmup_epochs",
    "use checkpoint_storage.save_trial_latest": "save_total_limit",
    "the validation has no batch size; max_tokens_per_forward sets its memory": (
        "eval_batch_size per_device_eval_batch_size validation_batch_size"
    ),
    "the schedule is linear: warm-up, then decay to 0": "lr_scheduler lr_scheduler_type scheduler",
    "give --output-dir to train.py": "output_dir output",
}


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if it is not in the table."""
    word = key.lower().replace("-", "_")
    for name, words in _NAMES.items():
        if word in words.split() and name in known:
            return f"did you mean {name!r}?{_NOTES.get(name, '')}"
    return next((advice for advice, words in _ADVICE.items() if word in words.split()), None)
