"""VICReg's loss equals loops over the formula."""

from harness.losses import assert_same, rows

from mmairl.models.heads.vicreg import VICRegHead


def test_vicreg_equals_loops_over_the_formula():
    a, b = rows(2, 6, 5).values()
    expected = 25 * sum((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten())) / a.numel()
    for z in (a, b):
        deviation = [
            (sum((x - column.mean()) ** 2 for x in column) / 5 + 1e-4) ** 0.5 for column in z.T
        ]
        expected = expected + 25 * sum(max(1 - d, 0 * d) for d in deviation) / 5
        centered = z - z.mean(dim=0)
        for i in range(5):
            for j in set(range(5)) - {i}:
                expected = expected + ((centered[:, i] @ centered[:, j]) / 5) ** 2 / 5
    loss = VICRegHead()({0: a}, {1: b}, None)['loss']
    assert_same(loss, expected, [a, b], 1e-10)
