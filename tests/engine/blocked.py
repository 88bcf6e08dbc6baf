"""A loader whose second batch does not come; for programs, too: it imports no test tools."""

import time

from torch.utils.data import Dataset

from detalbert.engine.loaders import RowLoader


class Blocked(Dataset):
    def __getitem__(self, number):
        while number == 1:
            time.sleep(1)
        return []


def blocked():
    batches = iter(RowLoader(Blocked(), range(2), num_workers=1))
    next(batches)
    return batches
