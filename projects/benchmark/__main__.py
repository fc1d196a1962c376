"""Compare the speed of mmairl with that of other libraries: python -m projects.benchmark --suite NAME [--device cuda].

Both sides of a comparison run in this process, in turn, so that other programs slow both.
"""

import argparse

from mmengine.logging import MMLogger

from mmairl.engine.run import register
from mmairl.errors import one_sentence_errors
from mmairl.hardware import keep_freed_memory
from projects.benchmark.loader import loader
from projects.benchmark.step import step
from projects.benchmark.timing import compare

SUITES = dict(step=step, loader=loader)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--suite', choices=SUITES, required=True, help='choose the suite')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='default: cpu')
    parser.add_argument('--rounds', type=int, default=5, help='run each side this many times')
    parser.add_argument('--quick', action='store_true', help='use tiny sizes, only as a check')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    register()
    MMLogger.get_current_instance().setLevel('ERROR')
    if args.device == 'cpu':
        keep_freed_memory()  # as mmairl's training does; this setting affects all code in this process
    for case in SUITES[args.suite](args.device, args.quick):
        ours, peer = compare(case, args.rounds, args.device)
        times = f'{peer / ours:5.2f} times as fast as {case.peer_name}'
        print(f'{times}: {case.name} ({1000 * ours:.1f} ms)', flush=True)


if __name__ == '__main__':
    main()
