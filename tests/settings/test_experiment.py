"""An experiment config without its secrets."""

from typing import Any

import pytest

from detalbert.errors import UserError
from detalbert.settings.experiment import masked
from tests.fakes.secrets import PLANTED

LOGIN = "https://me:planted@example.org/a?b=c@d"


@pytest.mark.parametrize(
    "config, shown",
    [
        ({"environment_variables": ["A=b=c", "B"]}, {"environment_variables": ["A=***", "***"]}),
        ({"registry_auth": {"cuda": ["A=b"]}}, {"registry_auth": {"cuda": ["***"]}}),
        ({"registry_auth": {"auth": "bWU6cGxhbnRlZA=="}}, {"registry_auth": {"auth": "***"}}),
        ([{"password": 7, "host": "a"}], [{"password": "***", "host": "a"}]),
        ({"connection_string": "A=b", "token": None}, {"connection_string": "***", "token": None}),
        ({"data": {"text": LOGIN}}, {"data": {"text": "https://***@example.org/a?b=c@d"}}),
        ({"a": "s3://key:planted@b/c"}, {"a": "s3://key:***@b/c"}),
        ({"a": "https://planted@b/c, me@d"}, {"a": "https://***@b/c, me@d"}),
    ],
)
def test_secrets_are_masked(config: Any, shown: Any) -> None:
    assert masked(config) == shown


def test_all_else_stays_as_it_is() -> None:
    data = {"text": "abfs://container@account/a", "tokenizer": "a@b", "vocab_size": None}
    config = {"data": data, "hyperparameters": {"seed": 1, "lr": 0.5}, "name": "a: b@c"}
    assert masked(config) == config
    assert "planted" in str(PLANTED) and "planted" not in str(masked(PLANTED))


def test_an_error_shows_no_login() -> None:
    assert str(UserError(f"data.text: {LOGIN}: gone")) == (
        "data.text: https://***@example.org/a?b=c@d: gone"
    )
