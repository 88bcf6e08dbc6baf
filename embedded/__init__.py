"""A small ALBERT, pretrained for the generated world: the model of a run that names no other."""
