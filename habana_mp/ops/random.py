"""Dropout, and samples from distributions."""

from __future__ import annotations

from habana_mp.ops.operation import NO_KERNEL, Operation

ROWS = (
    Operation("dropout", family="native_dropout"),
    Operation("feature_dropout", spellings="dropout1d dropout2d dropout3d"),
    Operation("native_dropout alpha_dropout feature_alpha_dropout", o2="float32"),
    Operation("_standard_gamma _sample_dirichlet _dirichlet_grad binomial", NO_KERNEL),
)
