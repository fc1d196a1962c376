"""Grids of small images as HTML, which wraps to a phone's width as a plotted grid would not."""

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image
from torch import Tensor


def picture(image: Tensor, alt: str) -> str:
    """One uint8 CHW image as an <img> that carries its pixels."""
    array = image.permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array).save(buffer, format='PNG')
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(alt, quote=True)}" title="{escape(alt, quote=True)}" src="data:image/png;base64,{data}">'


def view_pairs(originals: Sequence[Tensor], first: Sequence[Tensor], second: Sequence[Tensor]) -> str:
    """Each image beside its two augmented views."""
    rows = [
        f'<div class="pair">{picture(image, "image")}{picture(one, "first view")}{picture(two, "second view")}</div>'
        for image, one, two in zip(originals, first, second)
    ]
    return f'<div class="pairs">{"".join(rows)}</div>'


def neighbour_rows(
    queries: Sequence[tuple[Tensor, int]], neighbours: Sequence[Sequence[tuple[Tensor, int]]], classes: Sequence[str]
) -> str:
    """Each query followed by its neighbours, framed by whether they are of its class; items are (image, label)."""
    rows = []
    for (image, label), found in zip(queries, neighbours):
        name = str(classes[label])
        cells = [f'<div class="query">{picture(image, name)}{escape(name)}</div><span class="gap"></span>']
        for neighbour, its_label in found:
            verdict = 'right' if its_label == label else 'wrong'
            cells.append(f'<span class="picture {verdict}">{picture(neighbour, str(classes[its_label]))}</span>')
        rows.append(f'<div>{"".join(cells)}</div>')
    return f'<div class="neighbours">{"".join(rows)}</div>'
