"""Vocabulary of the generated world: kinds of things, their relations, the wording.

In every form {x} is the thing and {v} the value; a form without {x} follows a sentence on {x}.
"""

from dataclasses import dataclass

WORDS = {
    "goods": """salt wool glass honey paper silk cheese leather tar barley candles pottery marble
    rope cider tea""".split(),
    "timber": "oak maple walnut cedar ash elm cherry birch beech larch willow yew".split(),
    "field": """astronomy botany geometry medicine music law history logic grammar chemistry optics
    geology""".split(),
}


@dataclass(frozen=True)
class Relation:
    """One relation of a thing to a value."""

    sort: str  # of the value: "person", "place", "river", "year" or a key of WORDS
    says: tuple[str, ...]
    later: tuple[str, ...]  # statements that follow one on the thing
    asks: tuple[str, ...]
    back: tuple[str, ...]  # questions for the thing


@dataclass(frozen=True)
class Topic:
    """One kind of thing: the sort of its names, openings of a paragraph on it, its relations."""

    sort: str
    opening: tuple[str, ...]
    relations: tuple[Relation, ...]


def _kind(sort: str, opening: tuple[str, ...], table: str) -> Topic:
    """Create a kind from a table.

    An empty line ends a relation; its first line is the sort of its value, and the next four are
    says, later, asks and back, with " | " between the forms.
    """
    relations = []
    for block in table.strip().split("\n\n"):
        value, *lines = block.split("\n")
        relations.append(Relation(value, *(tuple(line.split(" | ")) for line in lines)))
    return Topic(sort, opening, tuple(relations))


TOWN = _kind(
    "town",
    ("Old maps show these towns.", "Several towns grew up in the valley.", ""),
    """
person
{x} was founded by {v} | {v} founded {x} | The founder of {x} was {v}
It was founded by {v} | Its founder was {v}
Who founded {x}? | Who was the founder of {x}? | By whom was {x} founded?
Which town did {v} found? | What town was founded by {v}?

year
{x} was first settled in {v} | In {v} people settled at {x} | {x} has been inhabited since {v}
It was settled in {v} | It has been inhabited since {v}
When was {x} settled? | In what year did people settle at {x}? | Since when has {x} been inhabited?
Which town was settled in {v}? | Which town has been inhabited since {v}?

river
{x} lies on the river {v} | The river {v} flows through {x} | {x} stands on the banks of the {v}
It lies on the river {v} | The {v} flows through it
Which river flows through {x}? | On which river does {x} lie? | What river is {x} on?
Which town lies on the river {v}? | What town does the {v} flow through?

goods
{x} is known for its {v} | The people of {x} sell {v} | The trade of {x} is in {v}
It is known for its {v} | Its people sell {v}
What is {x} known for? | What do the people of {x} sell? | What does {x} trade in?
Which town is known for its {v}? | In which town do people sell {v}?
""",
)
SHIP = _kind(
    "ship",
    ("The port kept a list of ships.", "Many ships used this coast.", ""),
    """
person
{v} was captain of the {x} | The {x} sailed under {v} | {v} commanded the {x}
Her captain was {v} | She was commanded by {v}
Who was the captain of the {x}? | Who commanded the {x}? | Under whom did the {x} sail?
Which ship did {v} command? | Of which ship was {v} captain?

year
The {x} was launched in {v} | In {v} the {x} was launched | The {x} first went to sea in {v}
She was launched in {v} | She first went to sea in {v}
When was the {x} launched? | In which year did the {x} first go to sea? | \
What year saw the launch of the {x}?
Which ship was launched in {v}? | Which ship first went to sea in {v}?

goods
The {x} carried {v} | {v} was the cargo of the {x} | The {x} was loaded with {v}
She carried {v} | Her cargo was {v}
What did the {x} carry? | What was the cargo of the {x}? | With what was the {x} loaded?
Which ship carried {v}? | Which ship had a cargo of {v}?

place
The {x} was built at {v} | The {x} came from the yards of {v} | Shipwrights in {v} built the {x}
She was built at {v} | She came from the yards of {v}
Where was the {x} built? | From which yards did the {x} come? | In which port was the {x} built?
Which ship was built at {v}? | Which ship came from the yards of {v}?
""",
)
LUTE = _kind(
    "lute",
    ("Few lutes of that time survive.", "The museum shows old lutes.", ""),
    """
person
{v} made the lute called {x} | The {x} lute was made by {v} | The maker of the {x} was {v}
It was made by {v} | Its maker was {v}
Who made the {x} lute? | Who was the maker of the {x}? | By whom was the {x} made?
Which lute did {v} make? | What lute was made by {v}?

person
{v} owned the {x} lute | The {x} belonged to {v} | The owner of the {x} was {v}
It belonged to {v} | Its owner was {v}
Who owned the {x} lute? | To whom did the {x} belong? | Who was the owner of the {x}?
Which lute did {v} own? | Which lute belonged to {v}?

timber
The body of the {x} is of {v} | The {x} lute was carved from {v} | {v} was the wood of the {x}
Its body is of {v} | It was carved from {v}
Of what wood is the {x}? | From what was the {x} lute carved? | What is the body of the {x} made of?
Which lute is of {v}? | Which lute was carved from {v}?
""",
)
SCHOLAR = _kind(
    "person",
    ("The college remembers its scholars.", "Learning was held in honour then.", ""),
    """
place
{x} was born in {v} | {x} came from {v} | {v} was the birthplace of {x}
This scholar was born in {v} | The scholar came from {v}
Where was {x} born? | Where did {x} come from? | What was the birthplace of {x}?
Who was born in {v}? | Which scholar came from {v}?

field
{x} studied {v} | {x} wrote on {v} | {v} was the field of {x}
This scholar studied {v} | The scholar wrote on {v}
What did {x} study? | What was the field of {x}? | On what did {x} write?
Who studied {v}? | Which scholar wrote on {v}?

person
{x} was taught by {v} | {v} taught {x} | {x} was a pupil of {v}
This scholar was taught by {v} | The scholar was a pupil of {v}
Who taught {x}? | By whom was {x} taught? | Who was the teacher of {x}?
Whom did {v} teach? | Who was a pupil of {v}?

year
{x} died in {v} | In {v} {x} died | {x} lived until {v}
This scholar died in {v} | The scholar lived until {v}
When did {x} die? | In what year did {x} die? | Until when did {x} live?
Who died in {v}? | Which scholar lived until {v}?
""",
)
KINDS = (TOWN, SHIP, LUTE, SCHOLAR)
