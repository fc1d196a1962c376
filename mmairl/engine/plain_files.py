"""Pickle files read as plain data, also where mmengine reads them for a data set.

`pickle.load` runs whatever a file asks for. Here a pickle may rebuild arrays, and whatever else it asks for ends the
reading before anything is called.
"""

import pickle
from collections import OrderedDict
from typing import IO, Any

import numpy as np
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import PickleHandler

from mmairl.data_configs import read_plain_yaml_only

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


class ArraysOnly(pickle.Unpickler):
    """An unpickler that looks up the handful of names that rebuild arrays and no other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ('_codecs', 'encode'):
            return _bytes_of_python2
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f'{module}.{name}')
        return ALLOWED[module, name]


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as the annotations of a data set, without the power to call."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        return ArraysOnly(file, **kwargs).load()


def read_plain_files_only() -> None:
    """Make mmengine's `load` use the readers of this file; what it writes stays as it was."""
    register_handler(['pkl', 'pickle'])(PlainPickles)
    read_plain_yaml_only()
