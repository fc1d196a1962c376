"""Plant known faults in mmairl's code, one at a time, and report which faults the tests find.

    python -m projects.benchmark.mutations              plant each fault in a scratch copy and run its tests
    python -m projects.benchmark.mutations --check      only check that each fault still applies

Each fault replaces a unique snippet, which may be anywhere below mmairl/, so moving a file needs no change here. If a
snippet has been rewritten, the fault is reported as stale and must be updated. Exit with 1 if a fault is missed or stale.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from projects.benchmark.goldens import checkout, working_tree

LIMIT = 600  # maximum seconds for the tests of one fault


@dataclass(frozen=True)
class Fault:
    """An edit of the code, and the names of the test files that should find it."""

    name: str
    old: str
    new: str
    tests: Sequence[str]


STATISTICS = ('test_statistics.py', 'test_compare_rows.py')
# The planted faults. Add new faults at the end, so that the number of a fault (see --fault) never changes.
FAULTS = (
    Fault(
        'loss: positive left out of the denominator',
        'torch.logaddexp(positive, negative) - positive',
        'negative - positive',
        ('test_heads.py', 'test_info_nce.py'),
    ),
    Fault(
        'loss: temperature squared',
        'widened(q) / temperature',
        'widened(q) / temperature**2',
        ('test_heads.py', 'test_info_nce.py'),
    ),
    Fault(
        'loss: regression weight ignored',
        'self.weight * (2 - 2 * similarity)',
        '(2 - 2 * similarity)',
        ('test_heads.py', 'test_regression.py'),
    ),
    Fault(
        'queue: wrong keys after wrap-around',
        'self.vectors[: len(keys) - until_end] = keys[until_end:]',
        'self.vectors[: len(keys) - until_end] = keys[: len(keys) - until_end]',
        ('test_queue.py',),
    ),
    Fault(
        'network: keys of the student not detached',
        "z[view] if self.target == 'student' else z[view].detach()",
        'z[view]',
        ('test_siamese.py',),
    ),
    Fault(
        'teacher: schedule one step late',
        'math.ceil((runner.iter + 1) / every)',
        'math.ceil(runner.iter / every)',
        ('test_momentum.py', 'test_after_step.py'),
    ),
    Fault(
        'LARS: weight decay missing in the denominator',
        'eta * w / (g + weight_decay * w), 1.0',
        'eta * w / g, 1.0',
        ('test_lars.py',),
    ),
    Fault(
        'LARS: biases adapted',
        "(group['params'][place].ndim > 1) == is_weight",
        "(group['params'][place].ndim > 0) == is_weight",
        ('test_lars.py',),
    ),
    Fault(
        'AMP: skipped step counted as taken',
        'return self.finite and self._applied and self.should_update()',
        'return self.finite and self.should_update()',
        ('test_wrapper.py', 'test_autocast.py'),
    ),
    Fault(
        'sampler: augmentation seed equal in every epoch',
        ' + self.epoch * 0xD1B54A32D192ED03',
        '',
        ('test_training_images.py', 'test_sampler.py'),
    ),
    Fault(
        'batch norm: statistics of a bad batch kept',
        '            self._copy(self.before, self.statistics)\n',
        '            self._copy(self.statistics, self.before)\n',
        ('test_bad_images.py', 'test_bad_data.py'),
    ),
    Fault(
        'k-NN: unweighted vote',
        '(nearness / temperature).exp()',
        'torch.ones_like(nearness)',
        ('test_knn.py',),
    ),
    Fault('k-NN: block offset lost', 'position + start]', 'position]', ('test_knn.py',)),
    Fault(
        'identity: values of weights not digested',
        '        digest.update(_bytes(tensor.detach().float()))\n',
        '',
        ('test_identity.py',),
    ),
    Fault(
        'Holm without monotony',
        'np.minimum(1, np.maximum.accumulate(steps, axis=-1))',
        'np.minimum(1, steps)',
        STATISTICS,
    ),
    Fault(
        'equivalence test with the wrong sign',
        '(margin - abs(estimate)) / error',
        '(margin + abs(estimate)) / error',
        STATISTICS,
    ),
    Fault(
        'pairing ignores the order of images', " or one['order'] != two['order']", '', STATISTICS
    ),
    Fault(
        'fairness: undeclared differences accepted',
        "        if entry['undeclared']:\n",
        '        if False:\n',
        ('test_spec.py', 'test_fairness.py'),
    ),
    Fault(
        'resume: oldest checkpoint',
        'path.stat().st_mtime_ns), reverse=True)',
        'path.stat().st_mtime_ns), reverse=False)',
        ('test_checkpoint.py',),
    ),
    Fault(
        'views: std not applied',
        '(to_unit(images) - mean_c11) / std_c11',
        '(to_unit(images) - mean_c11)',
        ('test_views.py', 'test_preprocess.py'),
    ),
    Fault(
        'logistic regression: strength chosen on the test set',
        'scores_of(metric, of_val, val.y)',
        'scores_of(metric, scores(prepare(test.x).to(device), fit.weight).cpu(), test.y)',
        ('test_logreg.py',),
    ),
    Fault(
        'batch norm: running variance biased',
        '(var * total / (total - 1))',
        'var',
        ('test_batchnorm.py', 'test_norm.py'),
    ),
    Fault(
        't-test: degrees of freedom too many',
        'np.minimum(n, m) - 1.0',
        'np.minimum(n, m)',
        STATISTICS,
    ),
    Fault(
        'interval at 90 % called 95 %',
        'stats.t.ppf(1 - level / 2, freedom)',
        'stats.t.ppf(1 - level, freedom)',
        STATISTICS,
    ),
    Fault('collapse limit at half', 'gain[..., None] / 4', 'gain[..., None] / 2', STATISTICS),
    Fault(
        'scale: rates by optimizer not applied',
        'optimizer.lr *= scale.lr.get(rule, 1.0)',
        'pass',
        ('test_spec.py', 'test_scale.py'),
    ),
    Fault(
        'jitter: hue half as strong on the device',
        "turns = 6 * params['amounts'][:, 3:]",
        "turns = 3 * params['amounts'][:, 3:]",
        ('test_transforms.py',),
    ),
    Fault(
        'feature cache ignores the views',
        "shared['views'] = identity['views'][name]",
        'pass',
        ('test_identity.py',),
    ),
    Fault(
        'queue: position lost on resume',
        'self.position, self.filled = state.tolist()',
        '_, self.filled = state.tolist()',
        ('test_queue.py',),
    ),
    Fault(
        'resume: random state not restored',
        'set_random_state(states[',
        'str(states[',
        ('test_resume.py',),
    ),
    Fault(
        'pickle: any global of posix is built',
        "        if f'{module}.{name}' not in ALLOWED_IN_PICKLES:\n",
        "        if module == 'posix':\n"
        '            return getattr(__import__(module), name)\n'
        "        if f'{module}.{name}' not in ALLOWED_IN_PICKLES:\n",
        ('test_trust.py', 'test_pickles.py'),
    ),
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--check', action='store_true', help='only check that every fault applies; runs no test'
    )
    parser.add_argument(
        '--fault', type=int, nargs='+', help='plant the faults with these numbers (default: all)'
    )
    parser.add_argument(
        '--work',
        type=Path,
        help='write the scratch copy to this folder (default: a fixed temporary folder)',
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    work = (args.work or Path(tempfile.gettempdir()) / 'mmairl_goldens').absolute()
    # An interrupted run may have left a fault in its scratch copy.
    shutil.rmtree(work / 'mutations', ignore_errors=True)
    tree = checkout(work / 'mutations', working_tree())
    bad = 0
    for number, fault in enumerate(FAULTS, start=1):
        if args.fault and number not in args.fault:
            continue
        began = time.perf_counter()
        try:
            outcome = plant(tree, fault, args.check)
        except LookupError as error:
            outcome = f'STALE: {error}'
        bad += not outcome.startswith(('found', 'applies'))
        print(
            f'{number:2} {fault.name}: {outcome} ({time.perf_counter() - began:.0f} s)', flush=True
        )
    print(
        f'{bad} faults missed or stale'
        if bad
        else 'every fault was found'
        if not args.check
        else 'every fault applies'
    )
    return int(bool(bad))


def plant(tree: Path, fault: Fault, check: bool) -> str:
    """Put a fault into the tree, run its tests, and restore the tree."""
    path = file_with(tree, fault.old)
    tests = files_named(tree, fault.tests)
    if check:
        return f'applies to {path.relative_to(tree)}'
    original = path.read_text()
    mutated = original.replace(fault.old, fault.new)
    compile(mutated, str(path), 'exec')
    path.write_text(mutated)
    try:
        return run_tests(tree, tests)
    finally:
        path.write_text(original)


def file_with(tree: Path, snippet: str) -> Path:
    """Return the only file of the package that contains the snippet once."""
    paths = [
        path for path in sorted((tree / 'mmairl').rglob('*.py')) if snippet in path.read_text()
    ]
    if len(paths) != 1 or paths[0].read_text().count(snippet) != 1:
        places = ', '.join(str(path.relative_to(tree)) for path in paths) or 'no file'
        raise LookupError(f'{snippet.strip()!r} must occur once in the package, and is in {places}')
    return paths[0]


def files_named(tree: Path, names: Sequence[str]) -> list[Path]:
    rooms = [tree / 'tests', tree / 'projects']
    paths = [path for name in names for room in rooms for path in sorted(room.rglob(name))]
    if not paths:
        raise LookupError(f'no test file is called {" or ".join(names)}')
    return paths


def run_tests(tree: Path, tests: Sequence[Path]) -> str:
    env = {
        **os.environ,
        'PYTHONPATH': str(tree),
        'OMP_NUM_THREADS': '1',
        'PYTHONDONTWRITEBYTECODE': '1',
    }
    command = [
        sys.executable,
        '-m',
        'pytest',
        '-q',
        '-x',
        '--no-header',
        '-p',
        'no:cacheprovider',
        *map(str, tests),
    ]
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f'found (tests did not end within {LIMIT} s)'
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith('FAILED ')]
    if done.returncode == 1 and failed:
        return f'found by {failed[-1].partition("tests/")[2] or failed[-1]}'
    if done.returncode == 0:
        return 'MISSED'
    return f'NOT TESTED: pytest ended with {done.returncode}: {done.stdout[-300:]} {done.stderr[-300:]}'


if __name__ == '__main__':
    sys.exit(main())
