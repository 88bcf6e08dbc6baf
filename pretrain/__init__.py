"""ALBERT from scratch: text -> token shards -> masked language model and sentence order."""
