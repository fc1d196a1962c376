"""Pickled dictionaries of NumPy arrays, as detectron2 releases them, read without running code from them.

`pickle.load` runs whatever a file asks for. Here only the handful of names that rebuild arrays are looked up;
any other name ends the reading before anything is called.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from mmairl.errors import UserError

_multiarray = np.core.multiarray if np.__version__ < '2' else np._core.multiarray
ALLOWED = {
    ('numpy', 'ndarray'): np.ndarray,
    ('numpy', 'dtype'): np.dtype,
    ('collections', 'OrderedDict'): OrderedDict,
    **{
        (module, name): getattr(_multiarray, name)
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray')
        for name in ('_reconstruct', 'scalar')
    },
}


def _bytes_of_python2(text: str, encoding: str) -> bytes:
    """What an array's pickle from Python 2 asks of `_codecs.encode`, and no other codec."""
    if encoding != 'latin1':
        raise pickle.UnpicklingError(f'_codecs.encode to {encoding}')
    return text.encode('latin1')


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ('_codecs', 'encode'):
            return _bytes_of_python2
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f'{module}.{name}')
        return ALLOWED[module, name]


def load_pickle(path: str | Path) -> dict:
    """The dictionary in a pickle of arrays and plain values; anything else is refused in one sentence."""
    try:
        with Path(path).open('rb') as file:
            loaded = _ArraysOnly(file, encoding='latin1').load()
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
