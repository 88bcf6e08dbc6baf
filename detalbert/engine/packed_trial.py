"""`PackedTrial`: the base class of encoders' trials, whose steps run packed rows one by one."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from detalbert.engine import token_budget
from detalbert.engine.attention import answer_logits
from detalbert.engine.flops import ENCODERS, row_lengths, training_flops
from detalbert.engine.forward import Forward
from detalbert.engine.gradients import FlatGradients
from detalbert.engine.rows import AnyRow
from detalbert.engine.trial import AnyHParams, StepTrial


class PackedTrial(StepTrial[AnyHParams, AnyRow]):
    """Trains an encoder, made with `attn_implementation=PACKED`, that every rank holds unsharded.
    Subclasses define the rows' losses.
    """

    gradients: FlatGradients
    read: Any = staticmethod(answer_logits)  # gives what a forward returns, see `Forward`

    def prepare_gradients(self) -> int:
        hparams, device = self.hparams, self.context.device
        self.forward = Forward(self.model, hparams.precision, device, hparams.compile, self.read)
        trained = (p for p in self.model.parameters() if p.requires_grad)
        self.gradients = FlatGradients(trained, self.slots, hparams.allreduce_dtype)
        # The layers are compiled, and the budget is set, before the first real row.
        wanted, longest = hparams.max_tokens_per_forward, hparams.max_seq_length
        self.forward.compile_layers(2 * longest if wanted == "auto" else wanted, longest)
        if wanted == "auto":
            wanted = token_budget.resolve(self.forward, longest, self.slots)
        return wanted

    def rounding(self) -> dict[str, Any]:
        return {
            "max_tokens_per_forward": self.max_tokens,
            "compile": bool(self.forward.layers),
            "row_multiple": self.forward.multiple,
            "allreduce_dtype": self.hparams.allreduce_dtype,
        }

    def row_flops(self, row: AnyRow) -> float | None:
        config = self.model.config
        known = config.model_type in ENCODERS
        return training_flops(config, row_lengths(row)) if known else None

    def losses(self, batch: list[AnyRow]) -> Iterator[Tensor]:
        """Yield the share of each of this rank's rows (on the CPU) in the rank's loss, a scalar.
        The step's loss is the mean over ranks.
        """
        raise NotImplementedError

    def add_gradients(self, batch: list[AnyRow]) -> None:
        self.forward.refresh()
        for loss in self.losses(batch):
            self.backward(loss)
        if self.slots > 1:
            with self.profile.mark("all_reduce"):
                self.gradients.average()
