"""Finds, in Python source, the calls that can run code out of a file they read."""

import ast
from collections.abc import Iterator
from pathlib import Path

SAFE_LOADERS = ('PlainLoader', 'SafeLoader', 'CSafeLoader', 'BaseLoader')
# Calls that are never safe on a foreign file, whatever their arguments.
ALWAYS = {
    'eval',
    'exec',
    'pickle.load',
    'pickle.loads',
    'pickle.Unpickler',
    'joblib.load',
    'dill.load',
    'shelve.open',
    'marshal.load',
    'marshal.loads',
    'pandas.read_pickle',
    'yaml.unsafe_load',
    'yaml.full_load',
    'runpy.run_path',
    'torch.jit.load',
    'torch.hub.load',
    'torch.utils.model_zoo.load_url',
    'mmengine.load',
    'mmengine.fileio.load',
    'mmengine.config.Config.fromfile',
    'mmengine.config.Config.fromstring',
    'mmengine.Config.fromfile',
    'mmengine.Config.fromstring',
}


def code_readers(source: str) -> Iterator[tuple[int, str]]:
    """The line and the full name of each such call in a file's source."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _full_name(node.func, names)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if _can_run_code(name, given, node):
                yield node.lineno, name


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What each imported name stands for: `from torch import load as l` makes l torch.load."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f'{node.module}.{alias.name}') for alias in node.names)


def _full_name(function: ast.expr, names: dict[str, str]) -> str:
    first, dot, rest = ast.unparse(function).partition('.')
    return names.get(first, first) + dot + rest


def _can_run_code(name: str, given: dict[str, str], call: ast.Call) -> bool:
    if name in ('torch.load', 'torch.hub.load_state_dict_from_url', 'load_state_dict_from_url'):
        return given.get('weights_only') != 'True'
    if name in ('numpy.load', 'np.load'):
        return given.get('allow_pickle', 'False') != 'False' or len(call.args) > 2
    if name in ('yaml.load', 'yaml.load_all'):
        return given.get('Loader', '').rpartition('.')[2] not in SAFE_LOADERS
    if name in ('importlib.import_module', 'import_module', '__import__'):
        return not (call.args and isinstance(call.args[0], ast.Constant))
    return name in ALWAYS or name.endswith('.extractall')  # where a name such as ../../x leads out of the folder


def code_readers_below(folder: Path) -> dict[tuple[str, str], int]:
    """The calls in all Python files below a folder, by file and name, with the first line of each."""
    found: dict[tuple[str, str], int] = {}
    for path in sorted(folder.rglob('*.py')):
        for line, name in code_readers(path.read_text('utf-8')):
            found.setdefault((path.relative_to(folder.parent).as_posix(), name), line)
    return found
