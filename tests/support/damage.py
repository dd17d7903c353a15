"""Damage to files of any format, for their readers to take."""

import re
from functools import lru_cache

#: What damaged files often hold: signs with a meaning, long numbers, white space that is none everywhere.
PIECES = [
    *(b'"', b",", b"\n", b"\0", b"\x1c", b"[" * 200, b"{" * 200, b"9" * 400, b"-", b"(", b"\xff", b"1e999", b"nan"),
    *(b"\xe2\x80\xae", b"\xed\xa0\x80", b"\x1b[31m", b"&a ", b"*a", b"!!timestamp ", b"<<: ", b"null", b"true", b"-1"),
    *(b"=1+1", b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"18446744073709551616", b"%s{0}", b"../", b"<b>"),
    *(b":1" * 200, b"0x" + b"f" * 5000, b"a." * 100),
]


def damaged(content, chance, pieces=PIECES):
    """Return a copy with bits flipped, parts repeated or cut out, and pieces inserted or written over it."""
    result = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result) + 1)
        action = chance.randrange(6)
        if action == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            result[at:at] = chance.choice(pieces)
        elif action == 2:
            del result[at : at + chance.randint(1, 40)]
        elif action == 3:
            piece = chance.choice(pieces)
            result[at : at + len(piece)] = piece
        elif action == 4:
            result[at:at] = result[at : at + 200] * chance.randint(1, 20)
        elif chance.random() < 0.3:
            del result[at:]
    return bytes(result)


#: What a value may be that a program or a person wrote: of another type, size or sign, or none.
VALUES = [
    *(b"", b"0", b"1", b"-1", b"2", b"-0.0", b"0.1", b"1.5", b"1e5", b"1e308", b"-1e308", b"1e-320", b"1e999", b"nan"),
    *(b"inf", b"-inf", b"null", b"true", b"false", b"None", b"[]", b"{}", b'""', b'"x"', b"[1, 2]", b"[[]]", b"100%"),
    *(b"2147483648", b"9007199254740993", b"9223372036854775808", b"18446744073709551616", b"1" + b"0" * 30, b"1_000"),
    *("\u0663".encode(), "\u00bd".encode(), "\u00b5s".encode(), b"0x10", b"1,5", b"1.5.2", b"1:30", b"2026-01-01"),
    *(b'{"a": 1}', b"x" * 5000, b" ", b".", b"-", b"'", b'"', b"\\", b"\\u0000", b"\\ud800", b"~", b"/", b"*", b"%d"),
    *(b"\n", b","),
]
_PLACES = [rb"[\w.+-]+", rb"\[[^][{}]*\]", rb"\{[^][{}]*\}", rb'"[^"\n]*"', rb"[^\n]*\n", rb",[^,\n]*"]


def changed(content, chance, values=VALUES):
    """Return a copy of a text with words, cells, lines and brackets replaced, exchanged, repeated or removed."""
    places = chance.sample(_places(content), min(chance.randint(1, 3), len(_places(content))))
    result = content
    for start, end in sorted(places, reverse=True):
        other_start, other_end = chance.choice(_places(content))
        other, own = content[other_start:other_end], content[start:end]
        new = chance.choice([chance.choice(values), other, own + other, own * 2, own * chance.randint(2, 40), b""])
        result = result[:start] + new + result[end:]
    return result


@lru_cache(maxsize=256)
def _places(content):
    """Return where the innermost words, strings, brackets, cells and lines of a text begin and end."""
    return [match.span() for place in _PLACES for match in re.finditer(place, content)]
