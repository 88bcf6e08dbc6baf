"""Scores of a file of answers, as predict.py and a trial print them."""

from pathlib import Path

from detalbert.escapes import escape_controls, json_line

UNCALIBRATED_LINE = (
    "uncalibrated: no validation shows that these probabilities hold; they only rank answers"
)


def print_scores(
    metrics: dict[str, float],
    folder: Path,
    workbook: Path | None,
    calibrated: bool,
    as_json: bool,
) -> None:
    """Print where a file's answers are, and their scores, if the file has answers."""
    if as_json:
        print(json_line({**metrics, "calibrated": calibrated, "output_dir": str(folder)}))
        return
    if metrics:
        print(score_table(metrics))
    if not calibrated:
        print(UNCALIBRATED_LINE)
    where = f"{folder} and {workbook}" if workbook else folder
    print(escape_controls(f"predictions are in {where}"))


def score_table(metrics: dict[str, float]) -> str:
    """Format the scores as a short table."""
    lines = [f"{'':14}{'questions':>9}{'exact':>9}{'f1':>9}"]
    for name, prefix in (("all", ""), ("answerable", "HasAns_"), ("unanswerable", "NoAns_")):
        if f"{prefix}total" in metrics:
            total = metrics[f"{prefix}total"]
            exact = metrics[f"{prefix}exact"]
            f1 = metrics[f"{prefix}f1"]
            lines.append(f"{name:14}{total:9,}{exact:9.2f}{f1:9.2f}")
    lines.append(f"{'best threshold':23}{metrics['best_exact']:9.2f}{metrics['best_f1']:9.2f}")
    exact_threshold = metrics["best_exact_thresh"]
    f1_threshold = metrics["best_f1_thresh"]
    lines.append(f"{'  which is':23}{exact_threshold:9.2f}{f1_threshold:9.2f}")
    return "\n".join(lines)
