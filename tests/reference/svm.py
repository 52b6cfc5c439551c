"""MI-SVM's and mi-SVM's labels, and the set kernel, one element at a time."""

import numpy as np


def witnesses(scores, offsets, y, known):
    labels = []
    for b in range(len(y)):
        rows = range(offsets[b], offsets[b + 1])
        if y[b] == 0:
            labels += [0 for _ in rows]
            continue
        bag = [int(known[i]) for i in rows]
        if 1 not in bag:
            allowed = [i for i in rows if known[i] != 0]
            best = max(allowed, key=lambda i: (scores[i], -i))
            bag[best - offsets[b]] = 1
        labels += bag
    return np.array(labels)


def imputed(scores, offsets, y, known):
    labels = []
    for b in range(len(y)):
        rows = range(offsets[b], offsets[b + 1])
        bag = [int(known[i]) if known[i] >= 0 else int(y[b] == 1 and scores[i] > 0) for i in rows]
        if y[b] == 1 and 1 not in bag:
            allowed = [i for i in rows if known[i] != 0]
            best = max(allowed, key=lambda i: (scores[i], -i))
            bag[best - offsets[b]] = 1
        labels += bag
    return np.array(labels)


def set_kernel(A, B, kernel):
    return np.array([[sum(kernel(x, z) for x in a for z in b) for b in B] for a in A])
