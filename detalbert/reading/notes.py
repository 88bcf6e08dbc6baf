"""Notes on a file that is read all the same: what a user should know, each kind with its count."""

from collections import Counter


class Notes:
    """Counts of what was noticed, by kind, and where the first of each is."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: dict[str, str] = {}

    def add(self, kind: str, place: str = "") -> None:
        """Count one more of a kind, at a place such as "line 7"."""
        self.counts[kind] += 1
        if place:
            self.places.setdefault(kind, place)

    def texts(self) -> dict[str, int]:
        """Return the counts by text: the kind, and the place of the first."""
        texts = {}
        for kind, count in self.counts.items():
            text = kind
            if kind in self.places:
                text = f"{kind} (the first: {self.places[kind]})"
            texts[text] = count
        return texts
