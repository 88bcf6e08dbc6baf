"""What `python -m pretrain.score` writes: the scores as JSON, a table and a plot."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from detalbert.atomic import whole_file, write_json
from detalbert.engine.threads import set_threads
from detalbert.environment import environment
from detalbert.errors import UserError, first_line
from detalbert.training.checkpoints import list_checkpoints, newest_complete, read_manifest
from pretrain.score_checkpoints import ACCURACIES, Kept, Pretraining
from pretrain.score_plot import draw

log = logging.getLogger("detalbert.score")
COLUMNS = ("steps", *ACCURACIES, "exact", "f1")
THREADS = "hyperparameters.threads"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses is one line."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot write there ({first_line(error)}); free space, or give another "
            "--output-dir"
        ) from None


class Scores:
    """The files of --output-dir; what is there from before is of the same pretraining and recipe.

    Raises UserError where it is not.
    """

    def __init__(
        self, folder: Path, run: str, pretraining: Pretraining, recipe: dict[str, Any]
    ) -> None:
        self.folder, self.file = folder, folder / "scores.json"
        past = self._read()
        if recipe[THREADS] == "auto":  # chosen once: it makes bits on a CPU
            recipe[THREADS] = past["recipe"][THREADS] if past else "auto"
        self.threads = recipe[THREADS] = set_threads(recipe[THREADS])
        for name, now in (("recipe", recipe), ("pretraining", pretraining.identity)):
            self._check_same(past.get(name, now), now)
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        self.content: dict[str, Any] = {
            "run": run,
            "recipe_sha256": digest,
            "recipe": recipe,
            "pretraining": pretraining.identity,
            "data": past.get("data"),
        }
        self.rows: dict[int, dict[str, Any]] = {row["steps"]: row for row in past.get("rows", [])}
        gone = {*self.rows, *(steps for steps, _ in list_checkpoints(folder))}
        for steps in sorted(gone - {kept.steps for kept in pretraining.kept}):
            stays = "its scores stay" if steps in self.rows else "it gets no scores"
            log.warning("the checkpoint after step %d is gone; %s", steps, stays)
        if not past:
            self._write()

    def take(self, kept: Kept, output: Path) -> bool:
        """Add the scores of the fine-tuning in `output`; False where it has not come to its end."""
        newest = newest_complete(output / "checkpoints")
        manifest = newest and read_manifest(newest)
        if not manifest or manifest["steps"] < manifest["run"]["hyperparameters.max_steps"]:
            return False
        data = {key: v for key, v in manifest["run"].items() if key.startswith("data.")}
        self._check_same(self.content["data"] or data, data)
        self.content["data"] = data
        best = json.loads((output / "metrics.json").read_text())["best"]
        where = environment(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self.rows[kept.steps] = {
            "steps": kept.steps,
            "checkpoint": kept.name,
            **kept.accuracies,
            "exact": best["exact"],
            "f1": best["f1"],
            "best_step": best["steps"],
            **{name: where[name] for name in ("device", "versions", "commit")},
        }
        self._write()
        return True

    def table(self) -> str:
        """In Markdown, a row for each checkpoint, in step order."""
        cells = [list(COLUMNS)]
        for row in self._in_order():
            percents = (f"{row[name]:.2f}" if name in row else "" for name in COLUMNS[1:])
            cells.append([f"{row['steps']:,}", *percents])
        cells.insert(1, ["---:"] * len(COLUMNS))
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [[c.rjust(w) for c, w in zip(line, widths, strict=True)] for line in cells]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _in_order(self) -> list[dict[str, Any]]:
        return [self.rows[steps] for steps in sorted(self.rows)]

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            return {name: found[name] for name in ("recipe", "pretraining", "data", "rows")}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.file}: not scores of a pretraining; give another --output-dir"
            ) from None

    def _write(self) -> None:
        rows = self._in_order()
        with writing(self.folder):
            with whole_file(self.folder / "scores.md") as file:
                file.write(self.table() + "\n")
            if rows:
                draw(rows, self.folder / "scores.svg")
            write_json(self.file, {**self.content, "rows": rows})  # last: what it has is done

    def _check_same(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for key in sorted({*was, *now}):
            if was.get(key) != now.get(key):
                raise UserError(
                    f"{key}: was {was.get(key)!r} in {self.file}, is {now.get(key)!r} now; "
                    "set it back, or give another --output-dir"
                )
