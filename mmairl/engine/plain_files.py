"""YAML and pickle files read as plain data, also where mmengine reads them for a data set or a config.

`pickle.load` and the YAML loader that mmengine uses run whatever a file asks for. Here a pickle may rebuild arrays and a
YAML file may hold values, and whatever else they ask for ends the reading before anything is called.
"""

import pickle
import re
from collections import OrderedDict
from typing import IO, Any

import numpy as np
import yaml
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import PickleHandler, YamlHandler

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
TUPLE = 'tag:yaml.org,2002:python/tuple'


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


class PlainLoader(yaml.SafeLoader):
    """The safe loader, which also knows the tuples that `Config.dump` writes and reads 1e-3 as the number it is."""


class PlainDumper(yaml.SafeDumper):
    """What writes files for PlainLoader: tuples stay tuples, and equal parts are written out, not referred to."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 wants a dot in the mantissa; without this a learning rate of 1e-3 would be a string.
FLOAT = re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$')
PlainLoader.add_constructor(TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
PlainDumper.add_representer(tuple, lambda dumper, values: dumper.represent_sequence(TUPLE, values))
for _language in (PlainLoader, PlainDumper):
    _language.add_implicit_resolver('tag:yaml.org,2002:float', FLOAT, list('-+0123456789'))


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as the annotations of a data set, without the power to call."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        return ArraysOnly(file, **kwargs).load()


class PlainYaml(YamlHandler):
    """mmengine's reader of YAML files without tags that name Python objects."""

    def load_from_fileobj(self, file: IO[str], **kwargs: Any) -> Any:
        return yaml.load(file, Loader=PlainLoader)


def read_plain_files_only() -> None:
    """Make mmengine's `load` use the readers of this file; what it writes stays as it was."""
    register_handler(['pkl', 'pickle'])(PlainPickles)
    register_handler(['yml', 'yaml'])(PlainYaml)
