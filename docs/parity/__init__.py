"""A workload to start from: whether each token id of a window is odd."""
