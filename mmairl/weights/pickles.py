"""Pickled dictionaries of NumPy arrays, as detectron2 releases them, read without running code from them.

`pickle.load` runs whatever a file asks for. Here only the handful of names that rebuild arrays are looked up;
any other name ends the reading before anything is called.
"""

import pickle
from pathlib import Path

from mmairl.engine.plain_files import ArraysOnly
from mmairl.errors import UserError


def load_pickle(path: str | Path) -> dict:
    """The dictionary in a pickle of arrays and plain values; anything else is refused in one sentence."""
    try:
        with Path(path).open('rb') as file:
            loaded = ArraysOnly(file, encoding='latin1').load()
    except pickle.UnpicklingError as error:
        if 'truncated' in str(error) or 'invalid' in str(error) or 'unpickling stack' in str(error):
            raise UserError(f'{path} is truncated or not a pickle; copy it again') from error
        raise UserError(
            f'{path} asks to run {error} while loading and was refused; only load files that hold plain arrays'
        ) from error
    except Exception as error:  # a damaged pickle can fail in any opcode: IndexError, KeyError, struct.error, ...
        raise UserError(f'{path} is truncated or not a pickle of weights; copy it again') from error
    if not isinstance(loaded, dict):
        raise UserError(f'{path} holds a {type(loaded).__name__}, not a dictionary of weights; give a model file')
    return loaded
