"""Codes of languages: `data.language`."""

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

ENGLISH = "en"
# ISO 639-1, without codes of countries (jp, cn, gr) that are no language's.
_CODES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de
    dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia
    id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo
    lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl
    ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk
    tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)


def _check_code(language: str) -> str:
    if language not in _CODES:
        raise PydanticCustomError("language", "write its ISO 639-1 code, as en, de or zh")
    return language


Language = Annotated[str, AfterValidator(_check_code)]
