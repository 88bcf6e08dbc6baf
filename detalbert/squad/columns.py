"""Columns of questions: ours, and the names that a source has for them.

Ours are accepted in any case, and others are named in `data.columns`. A column that seems to be one
of ours and would be passed over is an error: with a place that nobody reads, a label is wrong.
"""

import logging
import re
from collections.abc import Mapping

from detalbert.errors import UserError, nearest
from detalbert.records import Row
from detalbert.settings.hparams import COLUMNS
from detalbert.squad.labels import START_NAME
from detalbert.squad.sources import Reading

OF_ANSWERS = ("answer", "answers", "answer_start", "is_impossible")
# Names of columns that may be one of ours, beside an `answer`.
_SIMILAR = {
    "answer_start": START_NAME,
    "is_impossible": re.compile("impossible|answerable|no.?answer", re.IGNORECASE),
}
log = logging.getLogger(__name__)


class Columns:
    """A source's own names of columns, by ours.

    Args:
        reading: how the source is read.
        answers_needed: whether it must have answers.
    """

    def __init__(self, reading: Reading, answers_needed: bool) -> None:
        self.columns = reading.columns
        self.answers_needed = answers_needed
        self.may_lack_answers = "" in reading.no_answer
        self.plans: dict[tuple[str, ...], dict[str, str]] = {}  # most rows have the same names

    def rename(self, row: Row, place: str) -> Row:
        """Return the values of a row under our names.

        Raises:
            UserError: a column is missing, there twice, or would be passed over.
        """
        names = tuple(row)
        plan = self.plans.get(names)
        if plan is None:
            plan = self._find(names, place)
            self._check_answers(names, plan, place)
            self.plans[names] = plan
        return {name: row[own] for name, own in plan.items()}

    def _find(self, names: tuple[str, ...], place: str) -> dict[str, str]:
        """Return the own names of those of our columns that are among `names`."""
        plan = {}
        for name in COLUMNS:
            matches = [own for own in names if own.lower() == name]
            if name in self.columns:
                matches = [own for own in names if own == self.columns[name]]
            if len(matches) > 1:
                raise UserError(
                    f"{' and '.join(matches)} could be the {name}",
                    key=place,
                    cure=f"name it in data.columns: {{{name}: ...}}",
                )
            if matches:
                plan[name] = matches[0]
            elif name in ("question", "context"):
                raise self._missing(name, names, place)
        return plan

    def _check_answers(self, names: tuple[str, ...], plan: Mapping[str, str], place: str) -> None:
        """Raise UserError if there are no answers that are needed, or if a column seems to be of
        the answers and is not read.
        """
        if plan.keys().isdisjoint(("answer", "answers", "is_impossible")):
            is_similar = any("answer" in own.lower() for own in names)
            error = self._missing("answer", names, place)
            if self.answers_needed and (is_similar or not self.may_lack_answers):
                raise error
            if is_similar:
                log.warning("%s; so no scores", error)
        for name, pattern in _SIMILAR.items():
            if "answer" not in plan or name in plan:
                continue
            for own in names:
                if pattern.search(own) and own not in plan.values():
                    raise UserError(
                        f"column {own!r} may be the {name}, and is not read",
                        key=place,
                        cure=f"set data.columns: {{{name}: {own}}} if it is that, or rename it",
                    )

    def check_all(self, where: str) -> None:
        """Raise UserError if no row has a column that the user has named, but for answers that are
        not needed.
        """
        seen = {name for plan in self.plans.values() for name in plan}
        for name in self.columns.keys() - seen:
            if self.plans and (self.answers_needed or name not in OF_ANSWERS):
                raise self._missing(name, next(iter(self.plans)), where)

    def _missing(self, name: str, names: tuple[str, ...], where: str) -> UserError:
        own = self.columns.get(name, name)
        cure = f"name it in data.columns: {{{name}: ...}}; {nearest(own, names)}"
        if name == "answer":
            cure += '; data.no_answer: [""] if a row without it has no answer'
        return UserError(
            f"no column {own!r} (there: {', '.join(names):.200})",
            key=where,
            cure=cure,
        )
