"""Secrets in configs and lines: known by the names of their keys, and hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.redact import masked
from detalbert.settings.experiment import find_problems
from tests.fakes.secrets import PLANTED

SECRET = """HF_TOKEN hf_token apiKey api_key --db-password PGPASSWORD AWS_SECRET_ACCESS_KEY auth
AWS_ACCESS_KEY_ID access_key credential connection_string registrytoken client_secret accessToken
SMTP_PASS GITHUB_PAT sig passwords session_cookie KAGGLE_KEY""".split()
PLAIN = """tokenizer tokens token_type_ids max_tokens_per_forward pad_token mask_token_id text_key
key author unauthenticated tokens_per_second token_file num_key_value_heads experiment_seed
secretary decoder_start_token_id""".split()
ADDRESSES = [
    ("https://me:planted@example.org/a?b=c@d", "https://***@example.org/a?b=c@d"),
    ("s3://key:planted@b/c", "s3://key:***@b/c"),
    ("https://planted@b/c, me@d", "https://***@b/c, me@d"),
    ("https://h/x?a=1&key=planted&b=2", "https://h/x?a=1&key=***&b=2"),
    ("https://h/?X-Amz-Signature=planted", "https://h/?X-Amz-Signature=***"),
    ("abfs://container@account/a", "abfs://container@account/a"),
]


@given(st.sampled_from(SECRET), st.sampled_from(["{}={}", "x {}='{}' y", "--x=A=1,{}={}"]))
def test_what_has_a_secret_name_is_hidden(name, form):
    text = form.format(name, "planted")
    for shown in (masked(text), str(UserError(text))):
        assert "planted" not in shown
        assert name in shown

    config = {name: {"a": ["planted", None]}, "a": [{"name": name, "value": "planted"}]}
    assert masked(config) == {name: {"a": ["***", None]}, "a": [{"name": name, "value": "***"}]}


@given(st.sampled_from(PLAIN), st.sampled_from(["{}=5", "{}: 5", "--{} 5", "{} 5"]))
def test_what_has_another_name_stays(name, form):
    text = form.format(name)
    assert masked(text) == str(UserError(text)) == text
    assert masked({name: text, "n": 5}) == {name: text, "n": 5}


@pytest.mark.parametrize(("address", "shown"), ADDRESSES)
def test_logins_and_keys_of_addresses_are_hidden(address, shown):
    assert masked({"a": address}) == {"a": shown}
    assert str(UserError("gone", key=address)) == f"{shown}: gone"


def test_a_masked_config_is_as_valid_as_it_was():
    assert "planted" in str(PLANTED)
    assert "planted" not in str(masked(PLANTED))
    assert masked(masked(PLANTED)) == masked(PLANTED)
    keys = [problem.key for problem in find_problems(PLANTED)]
    assert keys == [problem.key for problem in find_problems(masked(PLANTED))]
