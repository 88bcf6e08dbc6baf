"""A generated reading task and a small ALBERT pretrained for it: what runs when nothing is set."""
