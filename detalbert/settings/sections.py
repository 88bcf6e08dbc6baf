"""Sections of a YAML config as pydantic dataclasses: keys, types and limits stand in one line each.

Types are strict: "5" is no number, and neither is true. Errors have pydantic's wording and name the
key. Dataclasses were preferred to pydantic's models, which reserve the name `model_config`.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import dataclass_transform

from detalbert.errors import SectionError, UserError, nearest, unknown_key
from detalbert.settings.metric import Metric
from detalbert.settings.values import Config

T = TypeVar("T")
Whole = Annotated[int, Field(le=2**63 - 1)]  # as large as a number of Go's may be
# The Field of a key that may have another value when a run is resumed: it changes how a run is
# carried out, or at most its rounding, not what it computes.
changeable = partial(Field, json_schema_extra={"changeable": True})


@dataclass_transform(frozen_default=True)
def strict_dataclass(cls: type[T]) -> type[T]:
    """Make a class with annotated keys a pydantic dataclass, for `parse_section`."""
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, str_min_length=1)
    return pydantic.dataclasses.dataclass(cls, frozen=True, config=strict)


class Section:
    """Base class of all sections."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __pydantic_fields__: ClassVar[dict[str, Any]]

    def check(self) -> None:
        """Raise UserError for values that contradict each other."""


S = TypeVar("S", bound=Section)


def parse_section(cls: type[S], name: str, values: object) -> S:
    """Return a config section as a `cls`.

    An unknown key with the value null is ignored: `det experiment continue` keeps every key that a
    config ever had, so only null can remove a wrong one.

    Args:
        cls: a `strict_dataclass`.
        name: where the section is, such as `data`, for the errors.
        values: of the section, as the config has them.

    Raises:
        SectionError: values are unknown, missing, of another type or out of their limits.
        UserError: it is no mapping, or its values contradict each other.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"expected a mapping of keys, got {type(values).__name__}", key=name)
    keys = cls.__pydantic_fields__
    present = {}
    for key, value in values.items():
        # No shell expands a path behind "key=".
        if isinstance(value, str) and value.startswith("~/"):
            value = os.path.expanduser(value)
        if key in keys or value is not None:
            present[str(key)] = as_whole(value)
    try:
        parsed = cls(**present)
    except ValidationError as error:
        raise SectionError(_problems(error, section=name, keys=keys)) from None
    parsed.check()
    return parsed


def as_whole(value: object) -> object:
    """Return 8.0 as 8, as JSON has it, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problems(error: ValidationError, section: str, keys: Config) -> list[UserError]:
    """Return a problem for each key that pydantic refuses."""
    problems: dict[str, UserError] = {}
    for fault in error.errors():
        key = str(fault["loc"][0])
        reason = fault["msg"]
        if fault["type"] == "unexpected_keyword_argument":
            problems[key] = unknown_key(key, section=section, known=keys)
            continue
        # Of a union each type has its own error: "a valid integer", "'auto'".
        if key in problems:
            cure = problems[key].cure
            other = reason.removeprefix("Input should be ")
            reason = cure if other in cure else f"{cure} or {other}"
        value = "missing" if fault["type"] == "missing" else f"{fault['input']!r:.60}"
        problems[key] = UserError(value, key=f"{section}.{key}", cure=reason)
    return list(problems.values())


@contextlib.contextmanager
def collected(problems: list[UserError]) -> Iterator[None]:
    """Add the problems for which the block raises UserError to `problems`."""
    try:
        yield
    except SectionError as error:
        problems += error.problems
    except UserError as error:
        problems.append(error)


class Parsers(NamedTuple):
    """Classes of the two sections of a workload's config, and its metrics. They import no heavy
    library.
    """

    data_class: type[Section]
    hyperparameters_class: type[Section]
    # What a validation computes; any of it may be `searcher.metric`.
    metrics: tuple[Metric, ...] = ()

    def data(self, values: object) -> Any:
        """Return the section `data`. Raises UserError as `parse_section` does."""
        return parse_section(self.data_class, "data", values)

    def hyperparameters(self, values: object) -> Any:
        """Return the section `hyperparameters`. Raises UserError as `parse_section` does."""
        return parse_section(self.hyperparameters_class, "hyperparameters", values)

    def both(self, data: object, hyperparameters: object) -> tuple[Any, Any]:
        """Return both sections. Raises SectionError, with the problems of both."""
        problems: list[UserError] = []
        with collected(problems):
            parsed_data = self.data(data)
        with collected(problems):
            parsed_hyperparameters = self.hyperparameters(hyperparameters)
        if problems:
            raise SectionError(problems)
        return parsed_data, parsed_hyperparameters

    def check_searcher(self, searcher: Config) -> None:
        """Raise UserError unless a validation reports `searcher.metric`, and less of it is better
        exactly if `searcher.smaller_is_better` says so.
        """
        name = searcher["metric"]
        metrics = {metric.name: metric for metric in self.metrics}
        if name not in metrics:
            raise UserError(
                f"validation gives no {name!r}",
                key="searcher.metric",
                cure=nearest(name, metrics),
            )
        smaller = metrics[name].smaller_is_better
        if searcher["smaller_is_better"] is not smaller:
            raise UserError(
                f"would keep the worst {name}",
                key="searcher.smaller_is_better",
                cure=f"set smaller_is_better: {str(smaller).lower()}",
            )


def json_schema(cls: type[Section]) -> Config:
    """Return the JSON Schema of a section: of each key the type, limits, default, and whether it is
    `changeable`.
    """
    return TypeAdapter(cls).json_schema()
