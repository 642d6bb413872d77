# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Gate captures in two numbers a head, and by phase (paper, section "Gates").

The captures of a run are read with phasejax.evals.gates.load_gates.
"""

import numpy as np

from phasejax.compress.geometry import WindowGeometry


def concentration(gates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Effective numbers of offsets (paper, section "Concentration").

    Args:
        gates: [windows, W, K, C].

    Returns:
        static exp(H(E[gate])) and per window E[exp(H(gate))], each [K], averaged over C. Both lie
        in [1, W]; only a small static number ties a head to fixed offsets.
    """

    def effective(weights: np.ndarray, axis: int) -> np.ndarray:
        safe = np.where(weights > 0, weights, 1.0)
        return np.exp(-np.sum(weights * np.log(safe), axis=axis))

    gates = np.asarray(gates, np.float64)
    static = effective(gates.mean(axis=0), axis=0).mean(axis=-1)
    per_window = effective(gates, axis=1).mean(axis=(0, -1))
    return static, per_window


def gate_mass_by_phase(gates: np.ndarray, geometry: WindowGeometry) -> np.ndarray:
    """Gate mass that the tokens of a phase get, relative to a uniform gate.

    With overlap several offsets of a window have the same phase, and their masses add up.

    Args:
        gates: [windows, W, K, C].
        geometry: the grid of windows.

    Returns:
        [S, K]; 1 where a phase gets its uniform share.

    Raises:
        ValueError: the gates are of another window.
    """
    if gates.ndim != 4 or gates.shape[1] != geometry.window:
        raise ValueError(
            f"gates have shape {gates.shape}, but those of a window of {geometry.window} tokens are"
            f" [windows, {geometry.window}, K, C]: pass the geometry that they were captured with."
        )
    mass = np.asarray(gates, np.float64).mean(axis=(0, 3))
    phase = np.arange(geometry.window) % geometry.stride
    belongs = (phase == np.arange(geometry.stride)[:, None]).astype(np.float64)
    share = belongs.sum(axis=1, keepdims=True) / geometry.window
    return belongs @ mass / share
