"""Data: windows of token ids, made by their number, and the packed rows that a rank trains on."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from detalbert.engine.rows import Row, dummy_row
from detalbert.settings.hparams import StepHParams
from detalbert.training.workload import DataSummary
from parity.hparams import PARSERS

TOKENS = 16  # of a window


class ParityRow(Row):
    """A packed row with what is to be predicted."""

    odd: Tensor  # int64 [T], 1 where the token id is odd


class ParityData(Dataset):
    """Windows by number; negative numbers are held out."""

    tokenizer = None  # of words; checkpoints would keep it

    def __init__(self, windows: int) -> None:
        self.windows = windows

    @classmethod
    def load(cls, section: dict[str, Any], hparams: StepHParams) -> "ParityData":
        """Return the data of a config's `data:`."""
        return cls(PARSERS.data(section).parity)

    def summary(self) -> DataSummary:
        """Return a line for the log, and what an epoch has."""
        return DataSummary(
            lines={"train": f"{self.windows} windows, generated"},
            windows=self.windows,
            tokens=self.windows * TOKENS,
        )

    def fingerprints(self) -> dict[str, Any]:
        """Return what must not change when a run is resumed."""
        return {"data.parity": self.windows}

    def __getitem__(self, windows: np.ndarray) -> list[ParityRow]:
        """Return packed rows of these windows (int64 [n]): here a single one of n x TOKENS tokens,
        the windows end to end without padding.
        """
        places = np.arange(TOKENS) ** 2
        ids = torch.from_numpy((windows[:, None] * 31 + places) % 99).flatten()  # [n x TOKENS]
        row = dummy_row(len(ids), TOKENS, ids.device)  # positions and bounds of equal windows
        return [
            {
                **row,
                "input_ids": ids,
                "odd": ids % 2,
                "windows": torch.from_numpy(windows),
            }
        ]
