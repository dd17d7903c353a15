"""Damage to files of any format, for their readers to take."""

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
