"""``hmp.compare`` and ``habana-mp diff`` of two records: the call that makes the first difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from habana_mp import cli, hmp
from helpers.recorded import record
from helpers.watching import marked_line


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a step in float32, of which the planted ones differ."""
    folder = tmp_path_factory.mktemp("sound")
    record(folder / "fp32")
    hmp.convert(preset="recommended")
    record(folder / "bf16")
    hmp.restore()
    return folder


#: The fault, the module and the operation of the first difference, and words of the first line.
PLANTED = [
    ("another epsilon", "Decoder.blocks.1.first", "layer_norm", "of the same inputs"),
    ("a mean in bfloat16", "Decoder", "mean", "it ran in fp32 in a, in bf16 in b"),
    ("dropped scale", "Decoder.blocks.2.attention", "mul", "which a alone calls"),
    ("a transposed weight", "Decoder.blocks.2.attention.key", "linear", "The runs had other weights"),
    ("an older kernel", "Decoder.blocks.3", "gelu", "of the same inputs"),
    ("dropout left on", "Decoder.blocks.0.dropout", "dropout", "of the same inputs"),
    ("a mask off by one", "Decoder.blocks.0.attention", "masked_fill", "The runs had other inputs"),
    ("a wrong rank's data", "Decoder.words", "embedding", "The runs had other inputs"),
]


@pytest.mark.parametrize(("fault", "module", "operation", "words"), PLANTED, ids=[one[0] for one in PLANTED])
def test_the_first_line_names_the_planted_fault(
    sound: Path, tmp_path: Path, fault: str, module: str, operation: str, words: str
) -> None:
    record(tmp_path, fault)
    found = hmp.compare(sound / "fp32", tmp_path)
    assert found.differs
    assert (found.first.module, found.first.operation) == (module, operation), str(found)
    first = str(found).splitlines()[0]
    assert f"`{operation}`" in first
    assert words in first
    assert found.inherited > 50
    assert found.matched > 100


def test_a_line_of_a_list_that_moved_is_named_with_both_precisions(sound: Path, tmp_path: Path) -> None:
    hmp.convert(preset="recommended", rules={"gelu": "fp32"})
    record(tmp_path)
    found = hmp.compare(sound / "bf16", tmp_path)
    assert (found.first.operation, found.first.precisions) == ("gelu", ("bf16", "fp32"))
    assert {one.operation for one in found.changed("precision")} == {"gelu"}


def test_compiled_code_is_compared_with_the_operations_that_make_its_results(sound: Path, tmp_path: Path) -> None:
    record(tmp_path, compiled=True)
    found = hmp.compare(sound / "fp32", tmp_path)
    assert not found.missing
    assert found.inside_of_compiled > 50
    assert not found.born, str(found)
    record(tmp_path, "another epsilon", compiled=True)
    found = hmp.compare(sound / "fp32", tmp_path)
    assert (found.first.module, found.first.operation) == ("Decoder.head", "linear")
    assert "in compiled code" in str(found)
    back = hmp.compare(tmp_path, sound / "fp32")
    assert (back.first.module, back.first.operation) == ("Decoder.head", "linear")


@pytest.mark.parametrize("how", ["twice", "lines", "one thread"])
@pytest.mark.parametrize("preset", ["recommended", "hmp-default", "O0"])
def test_clean_pairs_have_no_difference(tmp_path: Path, how: str, preset: str) -> None:
    def run(name: str, **options: str) -> Path:
        given = {"opt_level": "O0"} if preset == "O0" else {"preset": preset}
        hmp.convert(**given, **options)  # type: ignore[arg-type]  # texts all
        record(tmp_path / name, steps=2)
        return tmp_path / name

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        a = run("a")
        if how == "one thread":
            torch.set_num_threads(1)
        b = run("b", **({"report": "lines"} if how == "lines" else {}))
    finally:
        torch.set_num_threads(threads)
    found = hmp.compare(a, b)
    if how == "one thread" and preset == "hmp-default" and found.born:
        # torch sums the gradient of a layer norm's weight in bfloat16, for each thread by itself.
        assert {one.operation for one in found.born} <= {"gradient of weight", "gradient of bias"}, str(found)
        return
    assert not found.differs, str(found)
    if how != "one thread":
        assert found.inherited == 0


def test_another_batch_is_compared_by_means(sound: Path, tmp_path: Path) -> None:
    record(tmp_path, rows=8)
    found = hmp.compare(sound / "fp32", tmp_path)
    assert found.of_other_sizes > 50
    assert "had other sizes, and were compared by their mean magnitude alone" in str(found)


def test_what_one_alone_calls_is_missing(tmp_path: Path) -> None:
    for name in "ab":
        with hmp.record(tmp_path / name):
            x = torch.exp(torch.ones(3))
            torch.sin(x) if name == "a" else torch.cos(x)  # the one alone
    found = hmp.compare(tmp_path / "a", tmp_path / "b")
    line = marked_line(__file__, "the one alone")
    assert [(one.operation, one.only_in, one.line) for one in found.missing] == [("cos", "b", line), ("sin", "a", line)]
    assert not found.differs


def test_it_is_data_and_json(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "b", "another epsilon")
    a, b = str(sound / "fp32"), str(tmp_path / "b")
    assert cli.main(["diff", a, b, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["format"], data["differs"], data["born"][0]["operation"]) == (
        "habana-mp comparison of records",
        True,
        "layer_norm",
    )
    hmp.compare(a, b).to_json(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text()) == data
    assert cli.main(["diff", a, a]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_line_that_was_cut_off_is_left_out(sound: Path, tmp_path: Path) -> None:
    text = (sound / "fp32" / "main.jsonl").read_text()
    (tmp_path / "main.jsonl").write_text(text[: len(text) // 2])
    found = hmp.compare(tmp_path, sound / "fp32")
    assert not found.differs
    assert {one.only_in for one in found.missing} == {"b"}


def test_a_call_that_one_alone_makes_is_named_before_the_gradient_that_it_changes(tmp_path: Path) -> None:
    for name in "ab":
        linear = torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.ones_(linear.weight)
        with hmp.record(tmp_path / name):
            loss = torch.exp(linear(torch.zeros(1, 2)) * 0).sum()
            (loss / 4 if name == "a" else loss).backward()
    found = hmp.compare(tmp_path / "a", tmp_path / "b")
    assert (found.first.operation, found.first.only_in) == ("truediv", "a")


def test_the_rank_that_differs_first_is_named(sound: Path, tmp_path: Path) -> None:
    text = (sound / "fp32" / "main.jsonl").read_text()
    record(tmp_path / "c", "another epsilon")
    record(tmp_path / "d", "an older kernel")
    for folder, (one, other) in {"a": ("", ""), "b": ("d", "c")}.items():
        (tmp_path / folder).mkdir()
        for rank, of in enumerate((one, other)):
            file = tmp_path / folder / f"rank-{rank}.jsonl"
            file.write_text((tmp_path / of / "main.jsonl").read_text() if of else text)
    first = hmp.compare(tmp_path / "a", tmp_path / "b").first
    assert (first.operation, first.process) == ("layer_norm", "rank-1")
    assert str(first).endswith(" of rank-1")


def test_wrong_usage_is_told(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with pytest.raises(ValueError, match="must both be records or both be reports"):
        hmp.compare(sound / "fp32", tmp_path / "report.json")
    with pytest.raises(FileNotFoundError):
        hmp.compare(sound / "fp32", "nowhere")
    with hmp.record(tmp_path / "few", sample=3):
        torch.exp(torch.ones(5))
    with pytest.raises(ValueError, match="as many values of each tensor; got 64 in `a` and 3 in `b`"):
        hmp.compare(sound / "fp32", tmp_path / "few")
    with pytest.raises(ValueError, match=r"it is no record: the folder has no \.jsonl file"):
        hmp.compare(tmp_path, sound / "fp32")
    (tmp_path / "main.jsonl").write_text('{"format": "other"}\n')
    with pytest.raises(ValueError, match="its first line must name the format"):
        hmp.compare(tmp_path, sound / "fp32")
    (tmp_path / "main.jsonl").write_text('{"format": "habana-mp record"}\nno json\n{}\n')
    with pytest.raises(ValueError, match=r"main\.jsonl:2: it is no line of a record"):
        hmp.compare(tmp_path, sound / "fp32")
