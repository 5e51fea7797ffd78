"""Patterns of modules, against a slow definition of them, and errors in lines with patterns."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies
from torch import nn

from habana_mp import HmpWarning, hmp
from habana_mp.patches.torch import rules_in_modules
from habana_mp.policy.patterns import Matcher, may_meet, problem_of_pattern
from helpers.lists import Converter, warned_by_convert, write_list
from helpers.steered import inputs, network

PARTS = strategies.sampled_from(["a", "b", "0", "*", "**"])
PATTERNS = strategies.lists(PARTS, min_size=1, max_size=4).map(".".join)
PATHS = strategies.lists(strategies.sampled_from(["a", "b", "0"]), max_size=4).map(tuple)


def matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """The definition: a pattern means what it matches, and everything inside."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(matches(pattern[1:], path[taken:]) for taken in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and matches(pattern[1:], path[1:])


@given(strategies.lists(PATTERNS, min_size=1, max_size=6), PATHS, strategies.sampled_from(["", "a", "Net"]))
def test_all_patterns_are_matched_at_once(patterns: list[str], path: tuple[str, ...], root: str) -> None:
    found = Matcher(patterns).match([path], [root] if root else [])
    for number, pattern in enumerate(patterns):
        parts = tuple(pattern.split("."))
        # `**` may stand for no part before the class as well.
        named = [parts[i + 1 :] for i in range(len(parts)) if parts[i] == root and set(parts[:i]) <= {"**"}]
        assert (number in found.patterns) == any(matches(one, path) for one in [parts, *named])


@given(strategies.lists(PATTERNS, min_size=1, max_size=4), PATHS, PATHS, PATHS)
def test_modules_with_an_equal_match_have_equal_matches_inside(
    patterns: list[str], one: tuple[str, ...], other: tuple[str, ...], inner: tuple[str, ...]
) -> None:
    matcher = Matcher(patterns)
    if matcher.match([one]) == matcher.match([other]):
        assert matcher.match([one + inner]) == matcher.match([other + inner])


@given(PATTERNS, PATTERNS)
def test_two_patterns_meet_if_a_module_is_meant_by_both(a: str, b: str) -> None:
    paths = [path for length in range(8) for path in itertools.product("ab0", repeat=length)] if len(a + b) < 8 else []
    both = [path for path in paths if matches(tuple(a.split(".")), path) and matches(tuple(b.split(".")), path)]
    assert may_meet(a, b) or not both
    if paths and may_meet(a, b):
        assert both


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "must follow `@`"),
        ("a..b", "names, `*` or `**`, with dots"),
        (".a", "names, `*` or `**`, with dots"),
        ("a b", "names, `*` or `**`, with dots"),
        ("layer*", "`*` must be a whole part"),
        ("a.***", "`*` must be a whole part"),
    ],
)
def test_a_wrong_pattern_says_what_would_be_right(pattern: str, problem: str, tmp_path: Path) -> None:
    assert problem in problem_of_pattern(pattern)
    path = write_list(tmp_path / "fp32.txt", ["exp", f"softmax @ {pattern}"])
    with pytest.raises(hmp.ListError, match=r"fp32\.txt:2: "):
        hmp.convert("O1", "", path)
    with pytest.raises(hmp.ListError, match=r"rules\['softmax @ "):
        hmp.convert(rules={f"softmax @ {pattern}": "fp32"})
    assert not hmp.is_converted()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"sofmax @ a": "fp32"}, r"rules\['sofmax @ a'\]: unknown operation `sofmax`; did you mean `softmax`\?"),
        ({"softmax @ a": "fp23"}, r"the precision must be \"lower\", \"bf16\", \"fp16\" or \"fp32\"; got 'fp23'"),
        ({"softmax @ a": torch.float64}, r"the precision must be"),
        ({"softmax tanh @ a": "fp32"}, r"a line must hold one operation name"),
        ({" @ a": "fp32"}, r"a line must hold one operation name"),
        ({3: "fp32"}, r"rules\[3\]: a rule must be text"),
        (["softmax @ a"], r"rules: must be a dict of lines and precisions"),
    ],
)
def test_a_wrong_rule_says_what_would_be_right(rules: object, message: str) -> None:
    with pytest.raises(hmp.ListError, match=message):
        hmp.convert(rules=rules)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(hmp.ListError, match=message):
        hmp.autocast("cpu", rules=rules)  # type: ignore[arg-type]  # wrong on purpose
    assert not hmp.is_converted()


def test_equally_specific_rules_that_disagree_are_both_named(tmp_path: Path) -> None:
    bf16 = write_list(tmp_path / "bf16.txt", ["exp", "softmax @ encoder.*"])
    fp32 = write_list(tmp_path / "fp32.txt", ["softmax @ *.attention", "log"])
    with pytest.raises(hmp.ListError) as failed:
        hmp.convert("O1", bf16, fp32)
    assert "fp32.txt:1: `softmax @ *.attention` gives fp32" in str(failed.value)
    assert re.search(r"`softmax @ encoder\.\*` at .*bf16\.txt:2 gives bf16", str(failed.value))
    with pytest.raises(hmp.ListError, match="equally specific"):
        hmp.convert(rules={"* @ a.*": "fp32", "* @ *.b": "lower"})
    hmp.convert(rules={"* @ a": "fp32", "* @ b": "lower", "exp @ a.*": "fp32", "log @ *.b": "lower"})


def test_between_sources_rules_go_before_files_and_files_before_presets(converted: Converter) -> None:
    model = network()
    converted(bf16=["exp", "linear @ layers.0", "linear @ left"], rules={"linear @ layers.0": "fp16"})
    assert [one[0].dtype for one in model(inputs())] == [torch.float16, torch.float32, torch.bfloat16, torch.float32]
    converted(bf16=["linear"], rules={"linear": "fp32"})
    assert model(inputs())[0][0].dtype is torch.float32


def test_a_pattern_without_a_module_is_told_of_once_with_the_nearest_path(converted: Converter) -> None:
    model, other = network(), nn.Sequential(nn.Linear(8, 8))
    converted(bf16=["linear"], rules={"linear @ layer.1": "fp32", "linear @ 0": "fp32", "linear @ Net.left": "fp32"})
    with pytest.warns(HmpWarning) as told:
        [model(inputs()) for _ in range(2)]
    assert [str(one.message) for one in told] == [
        "rules['linear @ layer.1']: `linear @ layer.1` has no effect: no module of Net is at `layer.1`; "
        "did you mean `layers.1`?"
    ]
    del other


def test_ctrl_c_while_patterns_are_judged_lets_them_be_judged_again(
    converted: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    converted(bf16=["linear"], rules={"linear @ layer.1": "fp32"})

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rules_in_modules, "modules_in", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(inputs())
    with pytest.warns(HmpWarning, match=r"`linear @ layer.1` has no effect"):
        model(inputs())


def test_a_file_of_lines_for_modules_alone_says_that_its_list_is_empty(tmp_path: Path) -> None:
    path = write_list(tmp_path / "fp32.txt", ["* @ lm_head"])
    (told,) = warned_by_convert("O1", "", path, preset="recommended")
    assert re.search(r"fp32\.txt: every line holds in some modules only.*`rules=`", told)
