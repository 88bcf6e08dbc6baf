"""An experiment config without its secrets."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.redact import masked
from detalbert.settings import schema
from detalbert.settings.experiment import single_values
from tests.fakes.runs import refusal
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
    for config, expected in MASKED:
        assert masked(config) == expected
    config = {
        "data": {"text": "abfs://container@account/a", "tokenizer": "a@b", "vocab_size": None},
        "hyperparameters": {"seed": 1, "lr": 0.5},
        "name": "a: b@c",
    }
    assert masked(config) == config


def test_a_masked_config_is_no_other_to_who_reads_it_back() -> None:
    assert "planted" in str(PLANTED)
    assert "planted" not in str(masked(PLANTED))
    assert masked(masked(PLANTED)) == masked(PLANTED)

    config = {**PLANTED, "entrypoint": "a", "searcher": {"name": "single", "metric": "f1"}}
    findings = list(schema.check(config))
    findings_of_masked = list(schema.check(masked(config)))
    assert [finding.key for finding in findings] == [finding.key for finding in findings_of_masked]
    assert "planted" not in str([finding.detail for finding in findings])


def test_an_error_masks_what_it_names() -> None:
    error = UserError(f"data.text: {LOGIN}: gone")
    assert str(error) == "data.text: https://***@example.org/a?b=c@d: gone"


SECRET = """HF_TOKEN hf_token apiKey api_key --db-password PGPASSWORD AWS_SECRET_ACCESS_KEY auth
AWS_ACCESS_KEY_ID access_key credential connection_string registrytoken client_secret accessToken
SMTP_PASS GITHUB_PAT sig passwords session_cookie KAGGLE_KEY"""
PLAIN = """tokenizer tokens token_type_ids max_tokens_per_forward pad_token mask_token_id text_key
key author unauthenticated tokens_per_second token_file num_key_value_heads experiment_seed
secretary"""


@given(st.sampled_from(SECRET.split()), st.sampled_from(["{}={}", "x {}='{}' y", "-v A=1,{}={}"]))
def test_what_is_assigned_to_a_secret_name_is_masked(name: str, form: str) -> None:
    text = form.format(name, "planted")
    assert "planted" not in masked(text)
    assert "planted" not in str(UserError(text))
    assert name in masked(text)
    assert "planted" not in masked(f"{name}: planted")
    assert "planted" not in masked(f'{{"{name}": "planted"}}')

    flag = f"--{name.strip('-')}"
    assert masked(["run", flag, "planted", "after"]) == ["run", flag, "***", "after"]
    assert masked(f"run {flag} planted after") == f"run {flag} *** after"
    config = {name: "planted", "a": [{"name": name, "value": "planted"}]}
    assert masked(config) == {name: "***", "a": [{"name": name, "value": "***"}]}


@pytest.mark.parametrize(
    "text", "sk-proj-planted-is-a-long-one npm_planted0long eyJhbGciOiJIUzI1NiJ9.planted.x".split()
)
def test_what_has_the_shape_of_a_secret_is_masked(text: str) -> None:
    assert masked(f"run {text} after") == str(UserError(f"run {text} after")) == "run *** after"


IN_TEXT = [
    "https://hooks.slack.com/services/T0/B0/planted",
    "https://discord.com/api/webhooks/1/planted",
    "https://x.webhook.office.com/webhookb2/planted/IncomingWebhook/planted",
    "SharedAccessSignature=sr=planted&sig=planted",
    "mysqldump -u root -pplanted db",
    "mysql --host=a -p'planted' -e 'select 1'",
    "the password planted-1",
    "Password is planted-1",
    "db_password: planted-1",
]


@pytest.mark.parametrize("text", IN_TEXT)
def test_what_stands_where_a_secret_stands_is_masked(text: str) -> None:
    for shown in (masked(text), masked([text])[0], str(UserError(text))):
        assert "planted" not in shown
        assert "***" in shown
        assert masked(shown) == shown


PROSE = [
    "the password was wrong",
    "the password is wrong; ask for a new one",
    "password of user12 at host1",
    "a pretrained mysql dump, -p 8080",
    "https://hooks.slack.com/services",
    "https://discord.com/api/gateway",
    "mkdir -pv mysql",
]


@pytest.mark.parametrize("text", PROSE)
def test_prose_about_secrets_is_left(text: str) -> None:
    assert masked(text) == str(UserError(text)) == text


@given(st.sampled_from(PLAIN.split()), st.sampled_from(["{}=5", "{}: 5", "--{} 5", "{} 5"]))
def test_what_is_no_secret_is_left(name: str, form: str) -> None:
    text = form.format(name)
    assert masked(text) == str(UserError(text)) == text
    assert masked({name: text}) == {name: text}


RANGES = {
    "model": "m",
    "lr_scale": {"type": "double", "minval": 0.5, "maxval": 1.0},
    "model_config": {"part": {"lr_scale": {"type": "double", "minval": 0.5, "maxval": 1.0}}},
    "max_steps": {"type": "int", "minval": 3, "maxval": 5},
    "base_learning_rate": {"type": "log", "minval": -5, "maxval": -3},
    "beta2": {"type": "const", "val": 0.9},
    "global_batch_size": {"type": "categorical", "vals": [48, 128]},
}


@given(st.integers(0, 2**32), st.integers(0, 500))
def test_a_draw_is_a_function_of_seed_number_and_key(seed: int, draw: int) -> None:
    values = single_values(RANGES, seed, draw)
    assert values["model"] == "m"
    assert values["beta2"] == 0.9
    assert 0.5 <= values["lr_scale"] <= 1
    assert values["max_steps"] in (3, 4, 5)
    assert 1e-5 <= values["base_learning_rate"] <= 1e-3
    assert values["global_batch_size"] in (48, 128)

    # Other keys do not matter; the same range under another key, seed or number draws anew.
    alone = {"lr_scale": RANGES["lr_scale"]}
    assert single_values(alone, seed, draw) == {"lr_scale": values["lr_scale"]}
    scales = {
        values["lr_scale"],
        values["model_config"]["part"]["lr_scale"],
        single_values(RANGES, seed, draw + 1)["lr_scale"],
        single_values(RANGES, seed + 1, draw)["lr_scale"],
    }
    assert len(scales) == 4


def test_twenty_draws_meet_every_value_and_half_of_a_range() -> None:
    draws = [single_values(RANGES, 42, number) for number in range(1, 21)]
    assert {draw["max_steps"] for draw in draws} == {3, 4, 5}
    assert {draw["global_batch_size"] for draw in draws} == {48, 128}
    low = [draw for draw in draws if draw["base_learning_rate"] < 1e-4]
    assert 5 <= len(low) <= 15


WITHOUT_VALUES: list[dict[str, Any]] = [
    {"type": "int", "minval": 5, "maxval": 3},
    {"type": "log", "minval": 1},
    {"type": "categorical", "vals": []},
    {"type": "double", "minval": "a", "maxval": 2},
    {"type": "log", "minval": 400, "maxval": 5000},
    {"type": "const"},
]


@pytest.mark.parametrize("search_range", WITHOUT_VALUES)
def test_a_range_without_values_is_one_line(search_range: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="hyperparameters.seed: not a search range that can be"):
        single_values({"seed": search_range}, 1, 1)
    with pytest.raises(UserError, match="^hyperparameters.model_config.x: .*a search range"):
        single_values({"model_config": {"x": search_range}})


def test_a_draw_without_a_range_is_refused(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All tasks of an array would train the same."""
    error = refusal(capsys, tiny_config, tmp_path / "out", "--draw", 3)
    assert error.startswith("train.py: error: --draw 3: no hyperparameter has a search range")
    assert not (tmp_path / "out").exists()


def test_a_key_of_ours_without_its_section_is_named_with_it() -> None:
    sections = {
        "max_steps": "'hyperparameters.max_steps'",
        "train": "'data.train'",
        "text": "'data.text'",
        "documents": "'data.documents'",
        "labelz": "'labels'",
    }
    findings = {finding.key: finding for finding in schema.check(dict.fromkeys(sections, 1))}
    for key, meant in sections.items():
        assert findings[key].detail == f"unknown key; did you mean {meant}?"
