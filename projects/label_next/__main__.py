"""Find the best of several checkpoints on images without labels: a page asks for one label after another.

Each checkpoint classifies the images by k-NN on images that already have labels. Each answer is stored, so the same command
continues after an interruption. The probability that a best checkpoint is eliminated is at most 5 %.
"""

import argparse
import io
import secrets
from base64 import b64encode
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import torch
from PIL import Image

from mmairl.errors import UserError, one_sentence_errors
from mmairl.evaluation.embed import embed
from mmairl.evaluation.features import Features
from mmairl.evaluation.knn import knn_predictions
from mmairl.io import read_json, write_json
from mmairl.report.page import ENVIRONMENT, fill
from projects.label_next.race import Race

K = 20
SIDE = 800  # maximum width and height of the picture on the page, in pixels
ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))


def predict(checkpoint: str, train: Path, images: Path) -> dict[str, str]:
    """Return the class of each image by k-NN on the labeled images `train`/CLASS."""
    bank, files = embed(checkpoint, train)
    folders = [Path(file).relative_to(train).parts[0] for file in files]
    classes, labels = np.unique(folders, return_inverse=True)
    query, names = embed(checkpoint, images)
    no_labels = torch.zeros(len(query), dtype=torch.int64)
    bank_features = Features(torch.from_numpy(bank), torch.from_numpy(labels))
    [class_indices] = knn_predictions(
        bank_features, Features(torch.from_numpy(query), no_labels), [K]
    ).values()
    return dict(zip(names, classes[class_indices].tolist()))


class Session:
    """A race (sequential test) between checkpoints, with predictions and labels stored in one folder.

    Args:
        folder: The folder with predictions.json (for each checkpoint, the predicted class of each image) and labels.json.

    Raises:
        UserError: If the labels do not belong to the predictions.
    """

    def __init__(self, folder: Path) -> None:
        predictions = read_json(folder / 'predictions.json', dict)
        self.checkpoints = list(predictions)
        self.images = list(predictions[self.checkpoints[0]])
        columns = [[known[image] for image in self.images] for known in predictions.values()]
        self.race = Race(np.array(columns).T)
        self.file = folder / 'labels.json'
        self.labels: list[list[str]] = []
        for image, label in read_json(self.file) if self.file.exists() else ():
            if not self.add(image, label):
                raise UserError(
                    f"{self.file}: '{image}' is not the image that predictions.json selects next; restore the "
                    'predictions.json of these labels, or delete this file',
                    code='other-labels',
                )

    @property
    def image(self) -> str | None:
        place = self.race.next_image()
        return None if place is None else self.images[place]

    def add(self, image: str, label: str) -> bool:
        """Add a label. Return False if the image is not the one to label next, because browsers may send a form twice."""
        if image != self.image:
            return False
        self.race.add(self.images.index(image), label)
        self.labels.append([image, label])
        return True

    def page(self) -> str:
        """Return the page with the image to label, or with the result."""
        image = self.image
        remaining = [self.checkpoints[place] for place in self.race.remaining]
        if image:
            title = 'Which class does this image show?'
        elif len(remaining) == 1:
            title = f'{remaining[0]} is the best on these images'
        else:
            title = f'{" and ".join(remaining)} are equally good on these images'
        return fill(
            'ask.html',
            title=title,
            image=image,
            picture=_picture(image) if image else '',
            classes=np.unique(self.race.predictions).tolist(),
            labels=len(self.labels),
            file=self.file,
            open=np.count_nonzero(self.race.weights()),
            checkpoints=self.checkpoints,
            remaining=remaining,
        )


def _picture(path: str) -> str:
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((SIDE, SIDE))
        image.convert('RGB').save(buffer, 'PNG')
    return b64encode(buffer.getvalue()).decode()


class LabelServer(HTTPServer):
    """Serve the page on this machine, at an address that other pages and users cannot guess."""

    def __init__(self, session: Session, port: int = 0) -> None:
        super().__init__(('127.0.0.1', port), Handler)
        self.session = session
        self.path = f'/{secrets.token_urlsafe(16)}'
        self.url = f'http://127.0.0.1:{self.server_port}{self.path}'

    def serve(self) -> None:
        """Answer requests until the race is over."""
        while self.session.image:
            self.handle_request()


class Handler(BaseHTTPRequestHandler):
    server: LabelServer
    # Browsers open spare connections. Without this timeout (in seconds), an unused connection would block the server.
    timeout = 2

    def do_GET(self) -> None:
        if self.path != self.server.path:
            self.send_error(404)
            return
        content = self.server.session.page().encode()
        self.send_response(200)
        self.send_header('Content-Type', 'text/html; charset=utf-8')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        session = self.server.session
        body = self.rfile.read(int(self.headers['Content-Length'])).decode()
        form = parse_qs(body, keep_blank_values=True)
        if self.path == self.server.path and session.add(form['image'][0], form['label'][0]):
            write_json(session.file, session.labels)
        self.do_GET()

    def log_message(self, format: str, *values: object) -> None:
        """Suppress the line that the base class prints for each request."""


@one_sentence_errors
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog='projects.label_next', description=__doc__)
    parser.add_argument('train', type=Path, help='read labeled images from this folder of classes')
    parser.add_argument('images', type=Path, help='ask for labels of images in this folder')
    parser.add_argument('checkpoints', nargs='+', help='compare these checkpoints')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/label_next'))
    parser.add_argument(
        '--port', type=int, default=0, help='serve the page on this port (default: a free port)'
    )
    args = parser.parse_args(arguments)
    file = args.out / 'predictions.json'
    if not file.exists():
        write_json(
            file, {path: predict(path, args.train, args.images) for path in args.checkpoints}
        )
    server = LabelServer(Session(args.out), args.port)
    print(f'open {server.url}; stop by Ctrl-C, and continue by the same command')
    server.serve()
    print(server.session.page().partition('<title>')[2].partition('<')[0])


if __name__ == '__main__':
    main()
