"""Endless synthetic text for pretraining: passages about invented names, and cloze queries on them.

A passage states attributes and events of a few entities. A query repeats one of the statements in
another wording and leaves out one name; the task is to point at that name in the passage (recurring
span selection, Ram et al. 2021, arXiv:2101.00438). When the statement is not in the passage, the
target is nothing. Every name is new, made of random syllables: only matching can find it.
"""

from dataclasses import dataclass
from random import Random

ONSETS = """b br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl st t th
tr v w z""".split()
NUCLEI = """a e i o u ai au ea ee ia ie oa oo ou y""".split()
CODAS = """b ck d ff g k l ld ll lm m mp n nd ng nn nt p r rd rk rn rt s ss st t th x""".split()

KINDS = """academy airport apartment archive army bakery bank barn battalion beach brand brewery
cabin cafe camp canal cave channel chapel cinema circus clinic club colony committee computer
concert council court desert device dinner engine estate factory farm festival film fleet forest
fund garden gallery game hill hospital hotel journal kitchen laboratory language lighthouse
magazine market medicine meeting mill mineral mine monument museum network newspaper office palace
park party pipeline planet plant prison programme project railway restaurant robot rocket school
senate series shop species square stadium star station statue street studio team telescope temple
theatre tournament tower tribe tunnel union valley village website workshop""".split()

ATTRIBUTES = """accountant address adviser agent ally ancestor animal anthem area assistant author
badge banner budget capacity chair champion chief client coach code colour component cook cost
creator critic currency dealer defender deputy designer diameter director disease driver editor
emblem enemy engineer expert export flag flower fuel goal guard guide head height heir host
ingredient inspector insect inventor judge keeper label landlord lawyer leader length limit
manager member metal method minister model motto neighbour nickname number nurse opponent origin
parent partner patron pilot porter president price prize producer product rank rating rival ruler
secretary singer site source speaker sponsor style successor supplier symbol target teacher tenant
title tool trainer translator treasurer tree uniform user value victim visitor volume weapon
weight winner witness worker writer""".split()

VERBS = """accepted admired advised altered announced approved arranged attacked avoided blamed
blessed blocked cancelled captured carried changed chased checked cleaned cleared closed coloured
compared completed copied counted covered crossed damaged defended delayed described destroyed
discussed divided doubled dropped earned emptied ended entered examined expanded explained feared
filled finished fixed followed forced guarded guided helped hired ignored improved insulted
invited joined judged kicked labelled licensed linked loaded managed marked measured mentioned
moved ordered packed passed photographed planned praised predicted prepared printed promised
promoted protected punished pushed raided ranked rejected removed renamed rented repaired replaced
rescued restored reviewed robbed searched seized settled shaped signed solved stopped studied
supported surrounded tested touched traced transformed trusted united visited washed watched
welcomed""".split()

PREPOSITIONS = """above across after against along among at before behind below beside between
beyond for from in inside near on opposite outside over through toward under with
without""".split()

WORDS = """able about again age air all almost also always any art away back bad bank bay be
because become been began best better big bird black blue boat body bone book born both bread
bridge brother brown built bus business but call called came can captain case castle cattle
century change child church city clear cloth coal coast cold come common copper corn could country
craft cut dark daughter day deep did do does door down each early earth east easy eight end even
ever every eye face fact family far fast father few field fire first fish five food foot form
found founded four free friend full gave give glass go gold good great green ground group grew
grow hand harbour hard has have he hear her here high him his home horse hot hour house how human
hundred ice idea if important iron island it its just keep kind king knew know lake land large
last late later law lay lead learn left less let letter lies life light like line list little live
lived local long look lost love low made main make man many map master may men might mile milk
money month moon more morning most mother mountain much music must my name named never new next
night nine no north not now ocean of off often oil old once one only open or order other our out
own page paint paper part past people person picture place play point poor port possible power
press public put queen question quick quiet rain ran read real red rest rich right river road rock
room round run said sail salt same sand saw say sea second see seen send seven ship short should
show side silver simple since sister six size sky sleep slow small snow so some son song soon
sound south space stand state still stone story strong such sugar summer sun sure table take talk
tall tax tell ten than that the their them then there these they thing think third this thousand
three time tin today together told took top town trade travel true turn two until up upon use used
very voice wait walk wall war warm was water way week well went were west what wheat when where
which while white who whole whom whose why wide wife wild wind window wine winter wood wool word
work world would write year yellow yet you young author banks belonged cargo carved college died
flows founder garlic inhabited kept knowledge launched maker learned museum owned owner pupil
sailed scholar settled sell sold spoke stands taught teach written wrote yards library shelf
appeared valley known lute theme""".split()

ATTRIBUTE_FORMS = (
    "the {r} of {x} is {v}",
    "the {r} of {x} was {v}",
    "{x} has {v} as its {r}",
    "{v} is the {r} of {x}",
    "{v} was {r} of {x}",
    "{x}'s {r} is {v}",
    "as {r}, {x} had {v}",
    "{x} took {v} for its {r}",
    "its {r} is {v}",
    "it had {v} as {r}",
)
EVENT_FORMS = (
    "{x} was {r} by {v}",
    "{v} {r} {x}",
    "it was {v} who {r} {x}",
    "{x} had been {r} by {v}",
    "{x}, {r} by {v}, is known",
    "{v} once {r} {x}",
    "it was {r} by {v}",
    "it had been {r} by {v}",
)
PLACE_FORMS = (
    "{x} was {r} {v}",
    "{x} has been {r} {v}",
    "they {r} {v} {x}",
    "{x} came to be {r} {v}",
    "it was {r} {v}",
    "it has been {r} {v}",
)


@dataclass(frozen=True)
class Example:
    """One pretraining pair; `start` and `end` count characters of `passage`, -1 for no answer."""

    query: str
    passage: str
    start: int
    end: int


@dataclass(frozen=True)
class _Relation:
    forms: tuple[str, ...]
    word: str
    number: bool


def make_name(rng: Random) -> str:
    """Compose a new name of one or two words from random syllables."""

    def syllable() -> str:
        onset = rng.choice(ONSETS) if rng.random() < 0.85 else ""
        coda = rng.choice(CODAS) if rng.random() < 0.45 else ""
        return onset + rng.choice(NUCLEI) + coda

    def word() -> str:
        return "".join(syllable() for _ in range(rng.choice((1, 2, 2, 2)))).capitalize()

    return " ".join(word() for _ in range(rng.choice((1, 1, 2))))


def _relation(rng: Random) -> _Relation:
    shape = rng.random()
    if shape < 0.5:
        return _Relation(ATTRIBUTE_FORMS, rng.choice(ATTRIBUTES), rng.random() < 0.25)
    verb = rng.choice(VERBS)
    if shape < 0.75:
        return _Relation(EVENT_FORMS, verb, False)
    place = f"{verb} {rng.choice(PREPOSITIONS)}"
    return _Relation(PLACE_FORMS, place, rng.random() < 0.4)


def make_filler(rng: Random) -> str:
    """Join 4 to 11 common words at random, so that the tokenizer and the model see them."""
    return " ".join(rng.choices(WORDS, k=rng.randrange(4, 12)))


def _fill(form: str, **slots: str) -> str:
    """Put the slots into the form and capitalise its first character."""
    text = form.format(**slots)
    return text[0].upper() + text[1:]


def _passage(rng: Random, kind: str, facts: list[tuple]) -> tuple[str, dict]:
    """Write the facts in order. Returns the text and {(fact number, slot): (start, end)}."""
    text, spans, previous = "", {}, None
    if rng.random() < 0.5:
        text = _fill("the {k}s {f}. ", k=kind, f=make_filler(rng))
    for number, (entity, relation, value) in enumerate(facts):
        if rng.random() < 0.08:
            text += _fill("{f}. ", f=make_filler(rng))
        pronoun = entity == previous and rng.random() < 0.5
        form = rng.choice([f for f in relation.forms if ("{x}" in f) != pronoun])
        for slot, filling in (("x", entity), ("v", value)):
            if "{" + slot + "}" in form:
                before = form[: form.index("{" + slot + "}")]
                start = len(text) + len(before.format(x=entity, r=relation.word, v=value))
                spans[number, slot] = (start, start + len(filling))
        text += _fill(form, x=entity, r=relation.word, v=value) + ". "
        previous = entity
    return text.strip(), spans


def _query(rng: Random, fact: tuple[str, _Relation, str], asked: str, kind: str) -> str:
    """State the fact in any wording; the asked slot is masked, asked for or left out."""
    entity, relation, value = fact
    hole = rng.choice(("[MASK]", "what", "who", ""))
    slots = {"x": entity, "v": value, asked: hole}
    if asked == "v" and rng.random() < 0.3:
        slots["x"] = f"the {kind} {entity}"
    form = rng.choice([f for f in relation.forms if "{x}" in f])
    return " ".join(form.format(r=relation.word, **slots).split())


def make_example(rng: Random, level: float) -> Example:
    """Draw a passage and a query. A higher `level` (0 to 1) makes longer passages and more queries
    without an answer."""
    most = 2 + round(3 * level)
    entities = list(dict.fromkeys(make_name(rng) for _ in range(rng.randint(2, most))))
    relations = [_relation(rng) for _ in range(rng.randint(1, 1 + round(2 * level)))]
    kind, facts, missing = rng.choice(KINDS), [], []
    for entity in entities:
        for relation in rng.sample(relations, len(relations)):
            value = str(rng.randrange(100, 2100)) if relation.number else make_name(rng)
            fact = (entity, relation, value)
            (facts if rng.random() < 0.75 or not facts else missing).append(fact)
    passage, spans = _passage(rng, kind, facts)
    if missing and rng.random() < 0.3 * level:
        return Example(_query(rng, rng.choice(missing), "v", kind), passage, -1, -1)
    number, slot = rng.choice([key for key in spans if key[1] == "v" or rng.random() < 0.4])
    return Example(_query(rng, facts[number], slot, kind), passage, *spans[number, slot])
