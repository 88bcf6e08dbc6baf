"""Pretraining of encoders on text: token shards, masked language model, sentence order."""
