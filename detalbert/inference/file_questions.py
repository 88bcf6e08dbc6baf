"""Questions of `predict.py --data`: read once, as those that the model was trained on."""

import contextlib
import logging
from collections.abc import Iterator, Sequence

from detalbert.errors import UserError
from detalbert.inference.model import Trained
from detalbert.reading.records import Row
from detalbert.settings.experiment import apply_overrides
from detalbert.settings.hparams import DataConfig, parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.example import Example
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import open_split

# Keys of `data:` that --set may change: they say how a file is read and scored.
CHANGEABLE = (
    "data.columns",
    "data.language",
    "data.no_answer",
    "data.sheet",
    "data.skip_invalid",
)
log = logging.getLogger(__name__)


class Questions:
    """The questions of a file, which are read while they are iterated over, once.

    Args:
        trained: the model that answers them.
        data: a file, or as in a run's `data.validation`.
        changes: texts of `--set`.

    Raises:
        UserError: a change is invalid, or the file does not exist.
    """

    def __init__(self, trained: Trained, data: str, changes: Sequence[str] = ()) -> None:
        self.trained = trained
        self.data = data
        self.config = _parse_config(trained.data, data, changes)
        self.left_out: list[LeftOut] = []  # complete at the end
        self.cells: dict[str, Row] = {}  # rows of a table by id, until their answers are written
        with _naming_flag():
            self.source = open_split(self.config, "validation")

    def __iter__(self) -> Iterator[Example]:
        """Yield the questions.

        Raises:
            UserError: for a question that cannot be answered, unless such are left out.
        """
        total = 0
        with _naming_flag():
            examples = read_examples(
                self.source,
                answers_needed=False,
                left_out=self.left_out if self.config.skip_invalid else None,
                cells=self.cells,
            )
            for example in examples:
                total += 1
                yield example
        if self.left_out:
            first = f"{self.left_out[0].where}: {self.left_out[0].problem}"
            log.warning("questions that are left out: %s; the first: %s", len(self.left_out), first)
        if not total:
            raise UserError("no question that can be answered", key=self.data)


def _parse_config(trained: Config, data: str, changes: Sequence[str]) -> DataConfig:
    """Return the model's own `data:` with `data` to be read, and changed by texts of `--set`."""
    changed: Config = {}
    apply_overrides(changed, changes)
    for change in changes:
        key = ".".join(change.partition("=")[0].split(".")[:2])
        if key not in CHANGEABLE:
            raise UserError(
                "not read here", key=f"--set {key}", cure=f"set {', '.join(CHANGEABLE)}"
            )
    # `train` is required, and a model of another make has none.
    read_alone = {
        "validation": data,
        "validation_fraction": None,
        "sheet": None,
    }
    return parse_data_config({"train": data, **trained, **read_alone, **changed.get("data", {})})


@contextlib.contextmanager
def _naming_flag() -> Iterator[None]:
    """Let an error name predict.py's flag where it names the key of a config."""
    try:
        yield
    except UserError as error:
        raise error.under("--data" if error.key == "data.validation" else error.key) from None
