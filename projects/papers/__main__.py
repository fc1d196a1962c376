"""Write the page of claims: python -m projects.papers claims DIR [--out PAGE]. DIR contains the folders of studies."""

import argparse
from pathlib import Path

from mmairl.errors import one_sentence_errors


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('page', choices=['claims'])
    parser.add_argument('dir', type=Path, help='the folder that contains the folders of studies')
    parser.add_argument('--out', type=Path, help='the page (default: DIR/claims.html)')
    args = parser.parse_args()
    from projects.papers.claims_page import write_claims_page

    print(write_claims_page(args.dir, args.out or args.dir / 'claims.html'))


if __name__ == '__main__':
    main()
