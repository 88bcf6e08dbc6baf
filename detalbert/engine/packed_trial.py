"""`PackedTrial`: the base class of encoders' trials, whose steps run packed rows one by one.

Every rank holds the whole encoder, so ranks meet once per step: in the average of the gradients.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from detalbert.engine import token_budget
from detalbert.engine.flops import ENCODERS, row_lengths, training_flops
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.padded import read_spans
from detalbert.engine.rows import AnyRow
from detalbert.engine.trial import AnyHParams, StepTrial


class PackedTrial(StepTrial[AnyHParams, AnyRow]):
    """Trains an encoder, made with `attn_implementation=PACKED`, that every rank holds unsharded.
    Subclasses define the rows' losses.
    """

    gradients: FlatGradients
    read_logits: Any = staticmethod(read_spans)  # a `ReadLogits`, see rows.py

    def prepare_gradients(self) -> int:
        hparams = self.hparams
        self.forward = Forward(
            self.model,
            precision=hparams.precision,
            device=self.context.device,
            compiled=hparams.compile,
            read_logits=self.read_logits,
        )
        # Frozen parameters take no place in the buffer, and none on the network.
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.gradients = FlatGradients(trained, slots=self.slots, wire=hparams.allreduce_dtype)

        # The layers are compiled, and the budget is set, before the first real row.
        longest = hparams.max_seq_length
        max_tokens = hparams.max_tokens_per_forward
        if max_tokens == "auto":
            self.forward.compile_layers(2 * longest, longest)
            return token_budget.resolve(self.forward, longest, slots=self.slots)
        self.forward.compile_layers(max_tokens, longest)
        return max_tokens

    def numeric_settings(self) -> dict[str, object]:
        return {
            "max_tokens_per_forward": self.max_tokens,
            "compile": bool(self.forward.layers),
            "row_multiple": self.forward.multiple,
            "allreduce_dtype": self.hparams.allreduce_dtype,
        }

    def run_uncompiled(self, row_multiple: int) -> None:
        self.forward.run_uncompiled(row_multiple)

    def row_flops(self, row: AnyRow) -> float | None:
        config = self.model.config
        if config.model_type not in ENCODERS:
            return None
        return training_flops(config, row_lengths(row))

    def losses(self, batch: list[AnyRow]) -> Iterator[Tensor]:
        """Yield the share of each of this rank's rows (on the CPU) in the rank's loss, a scalar.
        The step's loss is the mean over ranks.
        """
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        # The last step changed the weights; half-precision copies follow.
        self.forward.refresh()
        for loss in self.losses(batch):
            self.backward(loss)
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                self.gradients.average()
