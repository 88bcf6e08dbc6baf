"""Pretraining of ALBERT on text: token shards, masked language model, sentence order."""
