"""Kernels entry by entry, straight from the formulas."""

import math

import numpy as np


def scaled_sq_distance(x, z, length_scale):
    scales = np.broadcast_to(length_scale, x.shape)
    return sum(((a - b) / s) ** 2 for a, b, s in zip(x, z, scales, strict=True))


def rbf(x, z, length_scale, variance):
    return variance * math.exp(-scaled_sq_distance(x, z, length_scale) / 2)


def matern32(x, z, length_scale, variance):
    r = math.sqrt(3 * scaled_sq_distance(x, z, length_scale))
    return variance * (1 + r) * math.exp(-r)


def matern52(x, z, length_scale, variance):
    r = math.sqrt(5 * scaled_sq_distance(x, z, length_scale))
    return variance * (1 + r + r * r / 3) * math.exp(-r)


def linear(x, z, variance):
    return variance * sum(a * b for a, b in zip(x, z, strict=True))


def constant(x, z, variance):
    return variance


def multi_scale(x, z, median_sq, variance):
    sq = scaled_sq_distance(x, z, 1.0)
    bells = [math.exp(-sq / (2 * c * median_sq)) for c in (1 / 8, 1 / 2, 2, 8)]
    return variance * sum(bells) / 4


def matrix(function, X, Z, *parameters):
    return np.array([[function(x, z, *parameters) for z in Z] for x in X])


def finite_differences(function, theta, step=1e-6):
    """Central differences of a scalar function."""
    theta = np.asarray(theta, dtype=float)
    grad = np.empty_like(theta)
    for i in range(len(theta)):
        up, down = theta.copy(), theta.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (function(up) - function(down)) / (2 * step)
    return grad
