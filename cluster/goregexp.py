"""Whether Go's `regexp` compiles a pattern: Determined's master is a Go program.

Its syntax is RE2's (https://pkg.go.dev/regexp/syntax): Python's without look-around, back
references, possessive and conditional groups, and with limits of its own.
"""

import re

_REPEAT_LIMIT = 1000
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP = re.compile(r"\?(?:P?<(?P<name>[^>]*)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))")
_POSIX = (
    "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit".split()
)
_ESCAPES = "AzbBdDsSwWafnrtv"  # letters that mean something after a backslash
_IN_CLASS = "dDsSwWafnrtv"
_CATEGORIES = set(
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps "
    "S Sc Sk Sm So Z Zl Zp Zs".split()
)


class _Fault(Exception):
    """Why Go does not compile the pattern."""


def problem(pattern: str) -> str | None:
    """Why Go's regexp does not compile `pattern`, in words; None where it does."""
    try:
        _Pattern(pattern).read()
    except _Fault as fault:
        return str(fault)
    except RecursionError:
        return "groups nested too deeply"
    return None


class _Pattern:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.names: set[str] = set()

    def read(self) -> None:
        self._branches()
        if self.at < len(self.text):
            raise _Fault("a ) that closes nothing")

    def _branches(self) -> int:
        """Read up to the group's end; returns how often its largest part is repeated."""
        largest, last, repeated = 1, 0, False  # last: size of what a * here would repeat, 0: none
        while self.at < len(self.text) and self.text[self.at] != ")":
            char = self.text[self.at]
            count = self._repetition()
            if count is not None:
                if not last:
                    raise _Fault(f"{char!r} has nothing to repeat")
                if repeated:
                    raise _Fault("one repetition on top of another (also ++, *+, ?+)")
                last *= count
                if last > _REPEAT_LIMIT:
                    raise _Fault(f"repeats more than {_REPEAT_LIMIT} times")
                largest, repeated = max(largest, last), True
                continue
            repeated = False
            if char == "|":
                self.at, last = self.at + 1, 0
            elif char == "(":
                last = self._group() or last
                largest = max(largest, last)
            else:
                self._one(char)
                last = 1
        return largest

    def _repetition(self) -> int | None:
        """Read *, +, ? or {n,m}, lazy ones too; returns the highest count named, 1 for none."""
        char, count = self.text[self.at], 1
        if char == "{":
            found = _COUNT.match(self.text, self.at)
            if not found:
                return None  # a brace as it stands
            low = int(found[1])
            high = int(found[3]) if found[3] else low
            if low > _REPEAT_LIMIT or high > _REPEAT_LIMIT or high < low:
                raise _Fault(f"repeat count {found[0]}")
            self.at, count = found.end(), max(high, 1)
        elif char in "*+?":
            self.at += 1
        else:
            return None
        if self.text[self.at : self.at + 1] == "?":
            self.at += 1
        return count

    def _group(self) -> int:
        """Read a group; 0 for one that only sets flags."""
        self.at += 1
        if self.text[self.at : self.at + 1] == "?":
            found = _GROUP.match(self.text, self.at)
            if not found:
                start = self.text[self.at - 1 : self.at + 3]
                raise _Fault(f"{start!r} (no look-around, no conditions, flags imsU)")
            name = found["name"]
            if name is not None:
                if not re.fullmatch(r"\w+", name, re.ASCII) or name in self.names:
                    raise _Fault(f"group name {name!r}")
                self.names.add(name)
            self.at = found.end()
            if found["end"] == ")":
                return 0
        size = self._branches()
        if self.at >= len(self.text):
            raise _Fault("a ( that is not closed")
        self.at += 1
        return size

    def _one(self, char: str) -> None:
        if char == "[":
            self._class()
        elif char == "\\":
            self._escape(_ESCAPES)
        else:
            self.at += 1

    def _escape(self, letters: str) -> str:
        """Read a backslash and what belongs to it; returns the character, or "" for a class."""
        rest = self.text[self.at + 1 :]
        start = rest[:1]
        if not start:
            raise _Fault("a backslash at the end")
        if letters is _ESCAPES and start == "Q":
            end = rest.find("\\E")
            self.at = len(self.text) if end < 0 else self.at + end + 3
            return ""
        octal = re.match(r"0[0-7]{0,2}|[1-7][0-7]{1,2}", rest)
        found = octal or re.match(r"x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]+\})", rest)
        if found:
            self.at += 1 + found.end()
            code = int(found[0], 8) if octal else int(found[0].strip("x{}"), 16)
            if code > 0x10FFFF:
                raise _Fault(f"\\{found[0]} is no character")
            return chr(code)
        unicode_class = re.match(r"[pP](?:\{\^?(\w+)\}|(\w))", rest)
        if unicode_class:
            name = unicode_class[1] or unicode_class[2]
            if len(name) < 3 and name not in _CATEGORIES:
                raise _Fault(f"\\{unicode_class[0]} is no class of characters")
            self.at += 1 + unicode_class.end()
            return ""
        if start.isalnum() and start.isascii() and start not in letters or not start.isascii():
            raise _Fault(f"\\{start} (no back references, no \\Z: Go has \\z)")
        self.at += 2
        return "" if start in "AzbBdDsSwW" else start

    def _class(self) -> None:
        self.at += 2 if self.text[self.at + 1 : self.at + 2] == "^" else 1
        first = True
        while first or self.text[self.at : self.at + 1] != "]":
            if self.at >= len(self.text):
                raise _Fault("a [ that is not closed")
            first = False
            named = re.compile(r"\[:(\^?)(\w+):\]").match(self.text, self.at)
            if named:
                if named[2] not in _POSIX:
                    raise _Fault(f"{named[0]} is no class of characters")
                self.at = named.end()
                continue
            low = self._member()
            if re.compile(r"-[^\]]").match(self.text, self.at) and low:
                self.at += 1
                high = self._member()
                if not high or high < low:
                    raise _Fault(f"the range up to {high or 'a class'} in [...]")
        self.at += 1

    def _member(self) -> str:
        char = self.text[self.at]
        if char == "\\":
            return self._escape(_IN_CLASS)
        self.at += 1
        return char
