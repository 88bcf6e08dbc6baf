"""Which tokenizers are refused."""

import pytest
import tokenizers

from detalbert.errors import UserError
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import build_windows
from tests.fakes.questions import TOKENIZERS


@pytest.mark.parametrize("version", ["0.23.1", "0.23.2"])
def test_tokenizers_that_lose_windows_are_refused(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "__version__", version)
    with pytest.raises(UserError, match=rf"{version}.*0\.23\.3"):
        build_windows([], TOKENIZERS["bert"])
    with pytest.raises(UserError, match=rf"{version}.*0\.23\.3"):
        named_tokenizer("embedded/albert-tiny")
