"""Random reports with any content that a report may have, for tests of properties that all reports have."""

from __future__ import annotations

from hypothesis import strategies as st

from habana_mp import CachedWeights, Report, Row
from habana_mp.policy.options import DETAILS
from habana_mp.reporting.records import REASONS, Edge, ModuleRow

CONVERTED = {"opt_level": "O1", "lower": "bf16", "preset": "hmp-default", "within": None}

NAMES = st.sampled_from(
    ["linear", "conv2d", "matmul", "softmax", "mul_", "mse_loss", "fft_rfft", 'own::{op} "\\', "", "%s"]
)
NUMBERS = st.integers(0, 10**12)
TIMES = st.none() | st.floats(0, 1e9)
ROWS = st.builds(
    Row,
    operation=NAMES,
    precision=st.sampled_from(["bf16", "fp16", "fp32", "unchanged"]),
    calls=NUMBERS,
    casts=NUMBERS,
    bytes=NUMBERS,
    reason=st.sampled_from([*REASONS, "of later"]),
    rule=st.none() | st.sampled_from(["rule 2", "a{0}.txt:3", ""]),
    module=st.none() | st.sampled_from(["M", "M.layers.0", "M.<lambda>", ""]),
    # The last one is how Python represents a file name that is not valid text.
    file=st.none() | st.sampled_from(["a.py", "/x/site-packages/p/b.py", '{c} "\\.py', "", "\udcff.py"]),
    line=st.none() | st.integers(0, 9),
    function=st.none() | st.just("forward"),
    phase=st.sampled_from(["forward", "backward", "traced"]),
    hits=NUMBERS,
    needed=NUMBERS,
    seconds=TIMES,
    cast_seconds=TIMES,
    noticed=st.dictionaries(
        st.sampled_from(["largest count", "largest angle", "with float64", "losses", "carried", "of later"]),
        st.floats(0, 1e9) | NUMBERS,
        max_size=3,
    ),
    refused=st.dictionaries(st.sampled_from(["NumPy had its memory", "{}"]), NUMBERS, max_size=2),
)
WEIGHTS = st.builds(
    CachedWeights,
    hits=NUMBERS,
    refreshes=NUMBERS,
    refreshed_bytes=NUMBERS,
    refused=NUMBERS,
    bytes=NUMBERS,
    reasons=st.dictionaries(st.just("the limit was reached, or memory ran out"), NUMBERS),
)


@st.composite
def any_report(draw: st.DrawFn) -> Report:
    rows = draw(st.lists(ROWS, max_size=12))
    places = st.integers(0, max(0, len(rows) - 1))
    edges = draw(st.lists(st.builds(Edge, places, places, NUMBERS, NUMBERS), max_size=20 if rows else 0))
    within = draw(st.sampled_from([None, "modules", "modules given"]))
    return Report(
        tuple(rows),
        weights=draw(WEIGHTS),
        detail=draw(st.sampled_from(DETAILS)),
        edges=tuple(edges),
        modules=(ModuleRow("M", "Model", draw(NUMBERS), 0.5),),
        configuration=draw(st.none() | st.just({**CONVERTED, "within": within})),
        ranks=draw(st.integers(1, 8)),
    )
