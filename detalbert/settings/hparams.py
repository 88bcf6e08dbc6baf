"""Keys of `hyperparameters:` and `data:` with types, defaults and limits.

Defaults are the published single-GPU recipe for albert-xxlarge-v2.
"""

import math
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import Field

from detalbert.errors import UserError, unknown_key
from detalbert.settings.languages import ENGLISH, Language
from detalbert.settings.metric import Metric
from detalbert.settings.sections import (
    Parsers,
    Section,
    Whole,
    changeable,
    parse_section,
    strict_dataclass,
)

# What a row of questions may have.
COLUMNS = (
    "question",
    "context",
    "id",
    "title",
    "answer",
    "answers",
    "answer_start",
    "is_impossible",
)


@strict_dataclass
class DataConfig(Section):
    """Sources of questions: `train`, and `validation` or a `validation_fraction` of `train`.

    Each is a file of questions, a folder with `train.*` and `validation.*`, an official file name
    (downloaded if absent), a `datasets` hub name (NAME, NAME@REVISION or NAME:CONFIG), or
    `generated`.
    """

    train: str
    validation: str | None = None
    validation_fraction: float | None = Field(None, gt=0, lt=1)  # by whole contexts
    columns: dict[str, str] | None = None  # the file's names: {question: Frage, context: Text}
    sheet: str | None = None  # of a spreadsheet; default: the first
    # Answers that stand for none: [n/a, "-"].
    no_answer: list[Annotated[str, Field(min_length=0)]] | None = None
    # Of the answers, by ISO 639-1 code: en is scored as SQuAD 2.0 does it, others as MLQA does.
    language: Language = ENGLISH
    tokenizer: str | None = None  # a folder or hub name; default: the one beside the model
    cache_dir: str = ".cache"
    skip_invalid: bool = False  # count and skip faulty questions instead of refusing the file
    # The share of windows without an answer, of questions that have one, that is drawn for each
    # epoch. Of long documents these are nearly all windows.
    no_answer_windows: float = Field(1.0, ge=0, le=1)
    max_train_examples: Whole | None = Field(None, gt=0)
    max_validation_examples: Whole | None = Field(None, gt=0)

    def check(self) -> None:
        if (self.validation is None) == (self.validation_fraction is None):
            raise UserError(
                "set exactly one of 'validation' (a file or data set) and 'validation_fraction'",
                key="data.validation",
                cure="--set data.validation=null takes out a config's",
            )
        for name in self.columns or ():
            if name not in COLUMNS:
                raise unknown_key(name, section="data.columns", known=COLUMNS)


class Length(NamedTuple):
    """Optimizer steps of a run, of its warm-up, and between two validations or checkpoints."""

    steps: int
    warmup: int
    validation: int
    checkpoint: int

    @property
    def validations(self) -> int:
        """Validations after a step; the last step has one."""
        return math.ceil(self.steps / self.validation)


@strict_dataclass
class StepHParams(Section):
    """Hyperparameters of every workload's optimizer step. Periods and steps are optimizer steps."""

    # The model: a hub name or folder, or a model config to start from random weights.
    model: str | None = None
    model_config: dict[str, Any] | None = None

    # The schedule. `max_steps` wins over `epochs`.
    # Windows per optimizer step, over all slots.
    global_batch_size: int = Field(48, gt=0, le=1_000_000)
    # A run keeps the `max_steps` that they make.
    epochs: float = changeable(2, gt=0, le=1_000_000)
    max_steps: Whole | None = Field(None, gt=0)

    # learning rate = base_learning_rate * global_batch_size / base_batch_size * lr_scale
    base_learning_rate: float = Field(5e-5, gt=0, le=1e20)
    base_batch_size: int = Field(48, gt=0, le=1_000_000)
    lr_scale: float = Field(1.0, gt=0, le=1_000)
    optimizer: Literal["radam", "adamw", "lamb"] = "radam"
    beta2: float = Field(0.999, ge=0, lt=1)  # of its mean of squared gradients
    weight_decay: float = Field(0.0, ge=0, le=1_000_000)
    warmup_fraction: float = Field(0.1, ge=0, le=1)  # of the steps
    # From the warm-up on linear or cosine decay, or wsd: the peak rate, then a short cosine decay.
    schedule: Literal["linear", "cosine", "wsd"] = "linear"
    min_rate: float = Field(0.0, ge=0, lt=1)  # at the end, as a fraction of the peak rate
    decay_fraction: float | None = Field(None, gt=0, le=1)  # of wsd; default: 0.1
    max_grad_norm: float = Field(1.0, ge=0, le=1e30)  # 0: gradients are not clipped

    # How it runs.
    max_seq_length: int = Field(384, gt=0, le=10_000_000)  # tokens of the longest window
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    # Real tokens in a micro-batch.
    max_tokens_per_forward: Annotated[int, Field(gt=0, le=10_000_000)] | Literal["auto"] = (
        changeable(4096)
    )
    # The layers, with torch.compile; default: on a GPU.
    compile: bool | None = changeable(None)
    # Default: the trial's, which is of reproducibility.experiment_seed.
    seed: Whole | None = Field(None, ge=0)
    # Of one slot; auto: its share of the cores that the process may use. On a CPU the thread count
    # changes rounding, so a resumed run keeps it.
    threads: Annotated[int, Field(gt=0, le=1_024)] | Literal["auto"] = changeable("auto")
    # Loader processes of one slot; default: by the machine's cores.
    num_workers: int | None = changeable(None, ge=0, le=256)
    # Both by default once per epoch.
    checkpoint_period: Whole | None = changeable(None, gt=0)
    validation_period: Whole | None = changeable(None, gt=0)
    # Ends the run after so many validations without a better `searcher.metric`; default: never.
    early_stopping: Whole | None = changeable(None, gt=0)
    reporting_period: Whole = changeable(10, gt=0)
    # Rank 0 traces so many after a warm-up.
    profile_steps: int = changeable(0, ge=0, le=1_000)
    # Watch for EC2's notice that it takes the machine back.
    spot_notice: bool = changeable(False)

    def length(self, windows: int) -> Length:
        """Return the length of a run of which an epoch has `windows` training windows.

        Steps are `max_steps` if set, else enough for `epochs` epochs: 132,198 windows twice at 48
        per step are 5,509 steps (5,508.25 rounded up). A period that is not set is an epoch.
        """
        # Rounded up, as the steps are: else the last validation would be followed by one more.
        epoch = math.ceil(windows / self.global_batch_size)
        steps = self.max_steps
        if steps is None:
            # As decimals: in floating point 100 * 1.1 is 110.00000000000001, a step more at 10.
            steps = math.ceil(windows * Fraction(str(self.epochs)) / self.global_batch_size)
        return Length(
            steps=steps,
            warmup=round(steps * self.warmup_fraction),
            validation=self.validation_period or epoch,
            checkpoint=self.checkpoint_period or epoch,
        )

    @property
    def known_seed(self) -> int:
        return cast(int, self.seed)  # a trial or `Training.load` has set it

    @property
    def decay(self) -> float:
        """The fraction of the steps over which wsd decays."""
        return self.decay_fraction or (0.1 if self.schedule == "wsd" else 0.0)

    def learning_rate(self) -> float:
        """Return the peak learning rate by linear scaling (Goyal et al. 2017, arXiv:1706.02677).
        5e-5 at 48 windows, scaled to 256 windows with lr_scale 0.75, is 2.0e-4.
        """
        return (
            self.base_learning_rate * self.global_batch_size / self.base_batch_size * self.lr_scale
        )

    def check_one_model(self) -> None:
        """Raise UserError unless one of `model` and `model_config` is set."""
        if (self.model is None) == (self.model_config is None):
            raise UserError(
                "set exactly one of 'model' (a hub name or folder) and 'model_config'",
                key="hyperparameters.model",
            )

    def check_positions(self, positions: Any) -> None:
        """Raise UserError unless a window fits a model of `positions` positions; None: any does, as
        far as it is known: a search has a range.
        """
        if isinstance(positions, int) and positions < self.max_seq_length:
            cure = "raise model_config.max_position_embeddings"
            if self.model is not None:  # whose table of positions is trained
                cure = "name a model with more"
            raise UserError(
                f"{self.max_seq_length} tokens, and the model has {positions} positions",
                key="hyperparameters.max_seq_length",
                cure=f"lower it, or {cure}",
            )

    def check(self) -> None:
        warm = self.warmup_fraction
        room = 1 - warm if self.schedule == "wsd" else 0
        if self.decay > room + 1e-9:
            raise UserError(
                f"at most {room:g} with schedule {self.schedule} and warmup_fraction {warm:g}",
                key="hyperparameters.decay_fraction",
                cure="lower it",
            )
        budget = self.max_tokens_per_forward
        if budget != "auto" and budget < self.max_seq_length:
            raise UserError(
                f"{budget} is less than one window (max_seq_length {self.max_seq_length})",
                key="hyperparameters.max_tokens_per_forward",
                cure="raise it",
            )


@strict_dataclass
class HParams(StepHParams):
    """`hyperparameters:` of an experiment that fine-tunes on SQuAD: windows and answers."""

    optimizer: Literal["radam", "adamw"] = "radam"
    doc_stride: Whole = Field(128, ge=0)  # tokens that two neighbouring windows share
    max_query_length: Whole = Field(64, gt=0)
    n_best_size: int = Field(20, gt=0, le=10_000)
    max_answer_length: Whole = Field(30, gt=0)
    null_score_diff_threshold: float = 0.0

    def check(self) -> None:
        self.check_one_model()
        if self.max_query_length + 4 > self.max_seq_length:
            raise UserError(
                f"{self.max_query_length} tokens leave no room in max_seq_length",
                key="hyperparameters.max_query_length",
                cure="lower it",
            )
        super().check()


# The official scores, and the loss; squad/metrics.py and a reducer of model_def.py compute them.
METRICS = (
    Metric("exact", charted=True, logged=True),
    Metric("f1", charted=True, logged=True),
    Metric("HasAns_f1", charted=True, logged=True),
    Metric("NoAns_exact", charted=True, logged=True),
    Metric("loss", charted=True, logged=True, smaller_is_better=True),
    Metric("best_f1", charted=True, logged=True),
    Metric("HasAns_exact", logged=True),
    Metric("best_exact", logged=True),
    Metric("total"),
    Metric("HasAns_total"),
    Metric("NoAns_f1"),
    Metric("NoAns_total"),
    Metric("best_exact_thresh"),
    Metric("best_f1_thresh"),
)

# Both raise UserError as `parse_section` does.
parse_hparams = partial(parse_section, HParams, "hyperparameters")
parse_data_config = partial(parse_section, DataConfig, "data")
PARSERS = Parsers(DataConfig, HParams, METRICS)
