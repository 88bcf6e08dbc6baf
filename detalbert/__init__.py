"""Fine-tuning and pretraining on Determined: what the trials, commands and tools share."""

__version__ = "1.0.0"  # also of what is stored: checkpoints, exports
