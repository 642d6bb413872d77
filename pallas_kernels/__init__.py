# Copyright 2026 The phasejax Authors
# SPDX-License-Identifier: Apache-2.0
"""Pallas kernels, one folder an op. They know nothing of phasejax; phasejax can do without them."""
