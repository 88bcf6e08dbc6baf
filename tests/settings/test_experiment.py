"""An experiment config without its secrets."""

from typing import Any

from detalbert.errors import UserError
from detalbert.settings.experiment import masked
from tests.fakes.secrets import PLANTED

LOGIN = "https://me:planted@example.org/a?b=c@d"


MASKED: list[tuple[Any, Any]] = [
    ({"environment_variables": ["A=b=c", "B"]}, {"environment_variables": ["A=***", "***"]}),
    ({"registry_auth": {"cuda": ["A=b"]}}, {"registry_auth": {"cuda": ["***"]}}),
    ({"registry_auth": {"auth": "bWU6cGxhbnRlZA=="}}, {"registry_auth": {"auth": "***"}}),
    ([{"password": 7, "host": "a"}], [{"password": "***", "host": "a"}]),
    ({"connection_string": "A=b", "token": None}, {"connection_string": "***", "token": None}),
    ({"data": {"text": LOGIN}}, {"data": {"text": "https://***@example.org/a?b=c@d"}}),
    ({"a": "s3://key:planted@b/c"}, {"a": "s3://key:***@b/c"}),
    ({"a": "https://planted@b/c, me@d"}, {"a": "https://***@b/c, me@d"}),
]


def test_secrets_are_masked_and_all_else_stays() -> None:
    assert [masked(config) for config, _ in MASKED] == [shown for _, shown in MASKED]
    assert "planted" in str(PLANTED) and "planted" not in str(masked(PLANTED))
    data = {"text": "abfs://container@account/a", "tokenizer": "a@b", "vocab_size": None}
    config = {"data": data, "hyperparameters": {"seed": 1, "lr": 0.5}, "name": "a: b@c"}
    assert masked(config) == config
    error = UserError(f"data.text: {LOGIN}: gone")
    assert str(error) == "data.text: https://***@example.org/a?b=c@d: gone"
