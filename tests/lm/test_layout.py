"""Layouts: what is chosen, what is refused before any process starts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from lm.layout import Layout, LayoutKeys, choose_layout, parse_layout
from tests.lm.ranks import tiny

LLAMA = tiny("llama", num_attention_heads=16, num_key_value_heads=8, hidden_size=128)


@pytest.mark.parametrize(
    ("keys", "slots", "machine", "expected"),
    [
        ({}, 1, 1, (1, 1, 1)),
        ({}, 8, 8, (1, 8, 1)),
        ({}, 64, 8, (8, 8, 1)),
        ({}, 56, 8, (7, 8, 1)),
        ({}, 6, 4, (1, 6, 1)),  # machines of 4 that do not divide 6
        ({}, 4, 8, (1, 4, 1)),
        ({"tensor": 4}, 64, 8, (8, 2, 4)),
        ({"tensor": 8}, 64, 8, (8, 1, 8)),
        ({"replicate": 1}, 64, 8, (1, 64, 1)),
        ({"replicate": 2, "tensor": 2}, 64, 8, (2, 16, 2)),
        ({"shard": 16}, 64, 8, (4, 16, 1)),
    ],
)
def test_what_is_left_open_is_chosen(
    keys: dict[str, int], slots: int, machine: int, expected: tuple[int, int, int]
) -> None:
    assert choose_layout(parse_layout(keys), LLAMA, slots, machine) == Layout(*expected)


@given(
    machines=st.integers(1, 9),
    per_machine=st.sampled_from([1, 2, 4, 8]),
    tensor=st.sampled_from([1, 2, 4, 8]),
)
def test_a_chosen_layout_fills_the_slots(machines: int, per_machine: int, tensor: int) -> None:
    slots = machines * per_machine
    if per_machine % tensor:
        with pytest.raises(UserError):
            choose_layout(LayoutKeys(tensor=tensor), LLAMA, slots, per_machine)
        return
    layout = choose_layout(LayoutKeys(tensor=tensor), LLAMA, slots, per_machine)
    assert layout.slots == slots and layout.tensor == tensor
    groups = [[r for r in range(slots) if layout.data_rank(r) == d] for d in range(slots)]
    groups = [group for group in groups if group]
    assert len(groups) == layout.data_ranks
    for group in groups:  # tensor peers are neighbours on one machine
        assert len(group) == tensor and len({rank // per_machine for rank in group}) == 1


@pytest.mark.parametrize(
    ("keys", "config", "slots", "machine", "said"),
    [
        ({"shard": 3}, LLAMA, 4, 4, "layout: replicate 1 x shard 3 x tensor 1 is 3 processes.* 4"),
        ({"replicate": 3}, LLAMA, 64, 8, "is 63 processes, and the experiment has 64 slots"),
        ({"tensor": 8}, LLAMA, 4, 4, "is 8 processes"),
        ({"tensor": 8}, LLAMA, 16, 4, "tensor: 8 peers do not fit inside machines of 4 slots"),
        ({"tensor": 3}, LLAMA, 6, 6, "tensor: 3 does not divide the model's num_attention_heads"),
        (
            {"tensor": 4},
            tiny("llama"),
            4,
            4,
            "tensor: 4 does not divide the model's num_key_value_heads 2",
        ),
        ({"tensor": 2}, tiny("gpt2"), 2, 2, "tensor: gpt2 has no tensor-parallel plan"),
        ({"tensors": 2}, LLAMA, 2, 2, "layout.tensors: unknown key; did you mean 'tensor'"),
        ({"shard": 0}, LLAMA, 2, 2, "layout.shard: 0 must be greater than 0"),
        ("none", LLAMA, 2, 2, "layout: expected a mapping of keys"),
    ],
)
def test_what_does_not_fit_is_refused(
    keys: dict, config: object, slots: int, machine: int, said: str
) -> None:
    with pytest.raises(UserError) as raised:
        choose_layout(parse_layout(keys), config, slots, machine)
    assert re.search(f"^hyperparameters.{said}" if "layout" in said else said, str(raised.value))


def test_auto_is_no_key() -> None:
    assert parse_layout("auto") == parse_layout({}) == LayoutKeys()
