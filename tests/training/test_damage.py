"""Damages of a run and of an export: the same numbers come, or one line."""

import contextlib
import random
import shutil

import pytest

from detalbert.errors import UserError
from detalbert.inference.export import export
from detalbert.inference.model import load_model
from detalbert.inference.reply import ask
from tests.fakes.damage import spoil
from tests.fakes.runs import newest, only_error, run
from tests.same_bits import differences

# Numbers of damages, of each kind: 4, and 75 in the soak.
NUMBERS = [range(4)]
for first in range(4, 79, 15):
    NUMBERS.append(pytest.param(range(first, first + 15), marks=pytest.mark.soak))
NOT_COUNTED = ["/.", "/code/", "tensorboard", "metrics.json"]  # locks, logs, code


def files_of(folder):
    """The files that count, in a fixed order."""
    files = []
    for path in sorted(folder.rglob("*")):
        counts = not any(part in str(path) for part in NOT_COUNTED)
        if path.is_file() and counts:
            files.append(path)
    return files


def damages(folder, numbers):
    """Yield for each number what is damaged in `folder`, which is whole again for each."""
    whole = folder.with_name("whole")
    folder.rename(whole)
    for number in numbers:
        shutil.copytree(whole, folder)
        dice = random.Random(number)
        files = files_of(folder)
        yield spoil(dice.choice(files), dice.choice(files), dice)
        shutil.rmtree(folder)


def judge(status, capsys, damage, output, expected):
    """Whether a run has ended in the same bits; else it did in one line with status 2."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown, f"{damage}\n{shown}"
    if status == 0:
        assert differences(expected, output) == [], f"{damage}\n{shown}"
    else:
        assert status == 2, damage
        assert only_error(shown).startswith("train.py: error: "), damage
    return status == 0


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_run_is_the_same_or_one_line(numbers, finished, copied, capsys):
    """At least half of the damages cost steps alone: two of three checkpoints are there."""
    shutil.rmtree(newest(copied))
    survived = 0
    for damage in damages(copied, numbers):
        status = run(finished / "tiny.yaml", copied)
        survived += judge(status, capsys, damage, copied, expected=finished / "out")
    assert survived >= len(numbers) / 2


@pytest.mark.parametrize("numbers", NUMBERS)
def test_an_export_answers_alike_or_not_at_all(numbers, finished, tmp_path):
    exported = tmp_path / "exported"
    question = "What was the Zanto loaded with?"
    context = "The Zanto was loaded with pottery."
    model = load_model(str(finished / "out"))
    export(model, exported)
    expected = ask(model, question, context, 0.0)
    assert ask(load_model(str(exported)), question, context, 0.0) == expected
    answered = 0
    for damage in damages(exported, numbers):
        with contextlib.suppress(UserError):
            answer = ask(load_model(str(exported)), question, context, 0.0)
            assert answer == expected, damage
            answered += 1
    assert answered < len(numbers) / 2
