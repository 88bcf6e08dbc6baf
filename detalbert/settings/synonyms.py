"""Names by which other trainers call keys, and the keys of this package for them."""

from collections.abc import Iterable

_NAMES = {
    "global_batch_size": "batch_size train_batch_size per_device_train_batch_size",
    "base_learning_rate": "lr learning_rate",
    "epochs": "epoch num_epochs num_train_epochs max_epochs",
    "max_steps": "steps num_steps max_train_steps",
    "max_seq_length": "max_length max_len seq_len seq_length block_size",
    "warmup_fraction": "warmup warmup_ratio warmup_proportion",
    "max_grad_norm": "clip grad_clip clip_grad_norm gradient_clipping",
    "precision": "fp16 bf16 amp dtype mixed_precision",
    "validation_period": "eval_steps eval_every eval_strategy evaluation_strategy",
    "checkpoint_period": "save_steps save_every save_strategy",
    "reporting_period": "logging_steps log_every",
    "num_workers": "dataloader_num_workers workers",
    "model": "model_name model_name_or_path",
    "train": "train_file dataset_name dataset",
    "validation": "validation_file eval_file dev test test_file",
    "max_train_examples": "max_train_samples",
    "max_validation_examples": "max_eval_samples",
    "max_validation_windows": "max_validation_examples max_eval_samples",
    "tokenizer": "tokenizer_name",
}
_NOTES = {
    "global_batch_size": " It counts windows over all slots (base_batch_size would change the "
    "learning rate)",
    "base_learning_rate": " It is scaled by global_batch_size / base_batch_size",
    "precision": " It is auto, fp32, bf16 or fp16",
    "warmup_fraction": " It is a fraction of the steps",
}
_ADVICE = {
    "gradient_accumulation_steps": "not needed: global_batch_size is cut into forwards of "
    "max_tokens_per_forward tokens",
    "warmup_steps": "use warmup_fraction, a fraction of the steps",
    "save_total_limit": "use checkpoint_storage.save_trial_latest",
    "per_device_eval_batch_size": "not needed: max_tokens_per_forward sets the memory",
    "output_dir": "give --output-dir to train.py",
}


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if it is not in the table."""
    word = key.lower().replace("-", "_")
    for name, words in _NAMES.items():
        if word in words.split() and name in known:
            note = " It counts steps" if name.endswith("_period") else _NOTES.get(name, "")
            return f"did you mean {name!r}?{note}"
    return _ADVICE.get(word)
