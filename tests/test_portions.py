"""`make test-all` groups test files into portions, and does not repeat portions that have passed."""

import subprocess

import pytest
from harness import portions


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with three test files, of which the last one fails, and a list that records calls of pytest."""
    for name in ('tests/a/test_one.py', 'tests/test_two.py', 'projects/x/tests/test_three.py'):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / '.gitignore').write_text('build/\n')
    subprocess.run(['git', 'init', '-q', tmp_path], check=True)
    calls = []

    def run_portion(files, options, report) -> int:
        calls.append(files)
        return int('projects/x/tests/test_three.py' in files)

    monkeypatch.setattr(portions, 'ROOT', tmp_path)
    monkeypatch.setattr(portions, 'STATE', tmp_path / 'build')
    monkeypatch.setattr(portions, 'run_portion', run_portion)
    monkeypatch.setattr(portions, 'UNKNOWN', 400)
    return tmp_path, calls


def test_portions_hold_all_files_within_the_limit():
    files = portions.files_of_tests()
    groups = portions.portions_of(files, {files[0]: 1000.0})
    assert [file for group in groups for file in group] == files
    assert groups[0] == files[:1]
    most = portions.WORKERS * portions.PORTION / portions.UNKNOWN
    assert all(len(group) <= most for group in groups)


def test_passed_portion_is_not_repeated(repository):
    _, calls = repository
    assert portions.main([]) == 1
    assert len(calls) == 3
    assert portions.main([]) == 1
    assert calls[3:] == [['projects/x/tests/test_three.py']]


def test_changed_file_starts_all_over(repository):
    root, calls = repository
    portions.main([])
    (root / 'new.py').write_text('x = 1')
    portions.main([])
    assert len(calls) == 6


def test_durations_come_from_the_report(tmp_path):
    cases = '<testcase file="tests/a.py" time="1.5"/><testcase file="tests/a.py" time="2"/>'
    report = tmp_path / 'report.xml'
    report.write_text(f'<testsuites><testsuite>{cases}</testsuite></testsuites>')
    assert portions.durations(report) == {'tests/a.py': 3.5}
