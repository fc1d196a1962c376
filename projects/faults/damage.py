"""Ways to damage a file: each function receives its content and a random generator, and returns the damaged content."""

import random
from collections.abc import Callable

Damage = Callable[[bytes, random.Random], bytes]


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
    return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def change_bytes(content: bytes, draw: random.Random) -> bytes:
    result = bytearray(content)
    for _ in range(draw.randint(1, 16)):
        result[draw.randrange(len(result))] ^= draw.randint(1, 255)
    return bytes(result)


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def cut_out(content: bytes, draw: random.Random) -> bytes:
    start, length = draw.randrange(len(content)), draw.randint(1, 4096)
    return content[:start] + content[start + length :]


def extend(content: bytes, draw: random.Random) -> bytes:
    addition = draw.randbytes(draw.randint(1, 4096))
    start = draw.choice([0, draw.randrange(len(content)), len(content)])
    return content[:start] + addition + content[start:]


def swap_blocks(content: bytes, draw: random.Random) -> bytes:
    size = draw.choice([64, 512, 1024])
    one, other = sorted(draw.sample(range(len(content) // size), 2))
    blocks = [content[start : start + size] for start in range(0, len(content), size)]
    blocks[one], blocks[other] = blocks[other], blocks[one]
    return b''.join(blocks)


def zero_block(content: bytes, draw: random.Random) -> bytes:
    """Replace a block by zeros, as if it had been allocated and never written."""
    size = draw.choice([512, 4096])
    start = draw.randrange(0, len(content), size)
    return content[:start] + bytes(len(content[start : start + size])) + content[start + size :]


def stretch_header(content: bytes, draw: random.Random) -> bytes:
    """Write the largest integers over some of the first 64 bytes, so that sizes, counts or offsets exceed the file."""
    result = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        start, length = draw.randrange(min(len(result), 64)), draw.choice([1, 2, 4])
        result[start : start + length] = draw.choice([b'\xff\xff\xff\xff', b'\x7f\xff\xff\xff'])[
            :length
        ]
    return bytes(result)
