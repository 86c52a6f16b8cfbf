"""A small robust fit without numpy: coefficients that are not negative, and errors that are relative."""

from __future__ import annotations

from collections.abc import Sequence


def nonnegative(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float] | None = None
) -> list[float]:
    """x >= 0 that makes sum of weight * ((row . x - target) / target)^2 small, by coordinate descent.

    rows: n rows of k figures. targets: n figures above 0. Figures of one column that are all 0 get coefficient 0.
    """
    k = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(k)]  # columns of one size converge sooner
    normal = [[0.0] * k for _ in range(k)]
    right = [0.0] * k
    for n, (row, target) in enumerate(zip(rows, targets, strict=True)):
        weight = 1.0 if weights is None else weights[n]
        relative = [row[i] / (scale[i] * target) for i in range(k)]
        for i in range(k):
            if relative[i]:
                right[i] += weight * relative[i]
                for j in range(i, k):
                    normal[i][j] += weight * relative[i] * relative[j]
    for i in range(k):
        for j in range(i):
            normal[i][j] = normal[j][i]
    x = [0.0] * k
    for _ in range(2000):
        before = list(x)
        for i in range(k):
            if normal[i][i]:
                rest = sum(normal[i][j] * x[j] for j in range(k) if j != i)
                x[i] = max(0.0, (right[i] - rest) / normal[i][i])
        if all(abs(new - old) <= 1e-10 * (1 + abs(old)) for new, old in zip(x, before, strict=True)):
            break
    return [value / size for value, size in zip(x, scale, strict=True)]


def robust(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The same, but errors beyond 10% count by their size and not by its square: a few disturbed figures pull less.

    (Huber, Annals of Mathematical Statistics 1964; by iteratively reweighted least squares.)
    """
    x = nonnegative(rows, targets)
    for _ in range(10):
        errors = relative_errors(rows, targets, x)
        x = nonnegative(rows, targets, [min(1.0, 0.1 / max(0.1, abs(error))) for error in errors])
    return x


def relative_errors(rows: Sequence[Sequence[float]], targets: Sequence[float], x: Sequence[float]) -> list[float]:
    return [
        sum(figure * value for figure, value in zip(row, x, strict=True)) / target - 1
        for row, target in zip(rows, targets, strict=True)
    ]
