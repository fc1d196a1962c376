"""Ways to damage a file: each function receives its content and a random generator, and returns the damaged content."""

import random
from collections.abc import Callable

Damage = Callable[[bytes, random.Random], bytes]


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    at, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
    return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]


def change_bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 16)):
        changed[draw.randrange(len(changed))] ^= draw.randint(1, 255)
    return bytes(changed)


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def cut_out(content: bytes, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(content)), draw.randint(1, 4096)
    return content[:at] + content[at + length :]


def extend(content: bytes, draw: random.Random) -> bytes:
    added = draw.randbytes(draw.randint(1, 4096))
    at = draw.choice([0, draw.randrange(len(content)), len(content)])
    return content[:at] + added + content[at:]


def swap_blocks(content: bytes, draw: random.Random) -> bytes:
    size = draw.choice([64, 512, 1024])
    one, other = sorted(draw.sample(range(len(content) // size), 2))
    blocks = [content[at : at + size] for at in range(0, len(content), size)]
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b''.join(blocks)


def zero_block(content: bytes, draw: random.Random) -> bytes:
    """Replace a block by zeros, as if it had been allocated and never written."""
    size = draw.choice([512, 4096])
    at = draw.randrange(0, len(content), size)
    return content[:at] + bytes(len(content[at : at + size])) + content[at + size :]


def stretch_header(content: bytes, draw: random.Random) -> bytes:
    """Set a few bytes of the header to their maximum, so that sizes, counts or offsets exceed the file."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        start, length = draw.randrange(min(len(changed), 64)), draw.choice([1, 2, 4])
        changed[start : start + length] = draw.choice([b'\xff\xff\xff\xff', b'\x7f\xff\xff\xff'])[
            :length
        ]
    return bytes(changed)
