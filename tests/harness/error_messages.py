"""List the messages of all errors that users may see, so that their wording can be reviewed in one file.

`PYTHONPATH=tests python -m harness.error_messages` writes the file tests/error_messages.txt.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = ROOT / 'tests/error_messages.txt'
PLACEHOLDER = 80  # An expression is shown with at most this number of characters
NO_CODE = 'no code'


def error_classes(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of UserError and its subclasses."""
    parents: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                parents.setdefault(node.name, set()).update(map(ast.unparse, node.bases))
    names = {'UserError'}
    while more := {name for name, bases in parents.items() if bases & names} - names:
        names |= more
    return names


def message(node: ast.expr) -> str:
    """Return the text of a message, with expressions in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return ''.join(message(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f'{{{ast.unparse(node.value)[:PLACEHOLDER]}}}'
    if isinstance(node, ast.BinOp):
        return message(node.left) + message(node.right)
    return f'{{{ast.unparse(node)[:PLACEHOLDER]}}}'


def code_of(call: ast.Call) -> str:
    """Return the code of the error that a call creates."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == 'code'] + call.args[1:2]
    return message(values[0]) if values else NO_CODE


def errors() -> Iterator[tuple[str, str, str]]:
    """Yield the file, code and message of each error that the package raises."""
    files = sorted((ROOT / 'mmairl').rglob('*.py'))
    trees = {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in files}
    classes = error_classes(trees)
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in classes:
                yield file, code_of(node), ' '.join(message(node.args[0]).split())


def listing() -> str:
    """Return the messages of all errors, grouped by file."""
    by_file: dict[str, list[str]] = {}
    for file, code, text in errors():
        by_file.setdefault(file, []).append(f'  [{code}] {text}')
    return '\n'.join('\n'.join([file, *sorted(lines), '']) for file, lines in by_file.items())


if __name__ == '__main__':
    LIST.write_text(listing())
