"""``habana-mp run``: a script sees what it sees under ``python`` itself, but for the precision, and ends as it does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from habana_mp import cli
from helpers.lists import write_list
from helpers.processes import RUN, python, split_lines

FACTS = """
import inspect, json, pickle, signal, sys, threading, warnings

class Own:
    "Somebody's class."

def facts():
    main = sys.modules["__main__"]
    print(json.dumps({
        "argv": sys.argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "names": sorted(set(globals()) - {"__mp_main__"}),
        "is main": vars(main) is globals(),
        "name, file": [__name__, __file__],
        "package, cached": [__package__, __cached__],
        "doc, annotations": [__doc__, repr(globals().get("__annotations__"))],
        "spec": [getattr(__spec__, one, None) for one in ("name", "origin", "parent", "cached")],
        "loader": type(__loader__).__name__,
        "source": inspect.getsource(Own),
        "pickled": type(pickle.loads(pickle.dumps(Own()))) is Own,
        "hooks": [sys.excepthook is sys.__excepthook__, sys.stderr is sys.__stderr__],
        "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "filters": [str(one) for one in warnings.filters if "torch" in sys.modules],
        "threads": threading.active_count(),
    }))

facts()
"""

#: What a script may be; the words after ``python`` for each.
KINDS: dict[str, list[str]] = {
    "file": ["facts.py", "--lr", "1", "-m", "--", "--report"],
    "link": ["link.py"],
    "folder": ["folder", "x"],
    "archive": ["archive.zip", "x"],
    "module of a package": ["-m", "package.facts", "x"],
    "package": ["-m", "package", "x"],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with :data:`FACTS` in every form."""
    folder = tmp_path_factory.mktemp("scripts")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("facts.py", "folder/__main__.py", "package/facts.py", "package/__main__.py", "package/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("" if name.endswith("__init__.py") else FACTS)
    (elsewhere / "linked.py").write_text(FACTS)
    (folder / "link.py").symlink_to(elsewhere / "linked.py")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", FACTS)
    return folder


def facts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def plainly(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` itself."""
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_a_script_finds_what_it_finds_under_python(scripts: Path) -> None:
    for name, words in KINDS.items():
        found, plain = facts(python(*RUN, *words, cwd=scripts)), facts(plainly(*words, cwd=scripts))
        filters = found.pop("filters")
        plain.pop("filters")  # those of torch are not among them
        assert found == plain, name
    assert filters == facts(python("-m", "facts", cwd=scripts))["filters"]


def test_two_dashes_end_our_own_options(scripts: Path) -> None:
    found = facts(python(*RUN, "--opt-level", "O2", "--", "facts.py", "--", "x", cwd=scripts))
    assert found["argv"] == ["facts.py", "--", "x"]
    assert facts(python(*RUN, "--", "-m", "facts", "x", cwd=scripts))["argv"][1:] == ["x"]


#: How a script may end.
ENDS = {
    "falls off its end": "",
    "exit with a number": "import sys; sys.exit(3)",
    "exit with text": "import sys; sys.exit('it is enough')",
    "error": "def f():\n    raise ValueError('no')\nf()",
    "syntax": "x = = 1",
    "interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(5)",
    "closed output": "import sys; sys.stdout.close()",
    "own hook": "import sys\nsys.excepthook = lambda kind, value, trace: print(kind, trace.tb_lineno)\n1 / 0",
    "error at exit": "import atexit\n@atexit.register\ndef fails():\n    1 / 0",
}


def without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x", text)


def test_a_script_ends_as_under_python(tmp_path: Path) -> None:
    begin = "import atexit, sys\natexit.register(lambda: print('at exit', file=sys.stderr))\n"
    for name, code in ENDS.items():
        (tmp_path / "script.py").write_text(code if name == "syntax" else begin + code)
        plain, ours = plainly("script.py", cwd=tmp_path), python(*RUN, "script.py", cwd=tmp_path)
        stderr, lines = split_lines(ours.stderr)
        assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), name
        assert without_addresses(stderr) == without_addresses(plain.stderr), name
        assert lines == ["habana-mp: no covered operation was called"], name
        assert ours.stderr.splitlines()[-1] == lines[-1], "what runs at exit runs before the last line"


def test_a_signal_ends_it_as_it_ends_python(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, *RUN, "waits.py"]
    for number in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's job in the background ignores it, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (no thread here)
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.wait(30) == -number


def test_the_installed_command_does_the_same(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys\nprint(sys.argv, sys.path[0])\n1 / 0\n")
    command = Path(sys.executable).with_name("habana-mp")
    plain = plainly("fails.py", "x", cwd=tmp_path)
    ours = subprocess.run([command, "run", "fails.py", "x"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ours.returncode, ours.stdout) == (1, plain.stdout)
    assert split_lines(ours.stderr)[0] == plain.stderr


# ---- the conversion --------------------------------------------------------------------------------------------------

LINEAR = """
import sys, torch
from habana_mp import hmp
print(torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype, torch.ones(2).mul(2).dtype, hmp.is_converted())
"""


def test_options_are_those_of_convert(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LINEAR)
    for name in ("mul", "linear"):
        write_list(tmp_path / f"{name}.txt", [name])
    for options, printed in {
        (): "torch.float32 torch.float32",
        ("--results", "as computed"): "torch.bfloat16 torch.float32",
        ("--opt-level", "O1"): "torch.bfloat16 torch.bfloat16",
        ("--preset", "hmp-default", "--dtype", "fp16"): "torch.float16 torch.float16",
        ("--bf16", "mul.txt", "--fp32=linear.txt"): "torch.float32 torch.bfloat16",
    }.items():
        done = python(*RUN, *options, "script.py", cwd=tmp_path)
        assert done.stdout.strip() == f"{printed} True", (options, done.stderr)


def test_a_strict_run_ends_with_the_pattern_that_matches_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nmodel = torch.nn.Linear(4, 4)\nmodel(torch.ones(2, 4))\n")
    for options, status in (((), 0), (("--strict",), 1)):
        done = python(*RUN, *options, "--rule", "linear @ head=fp32", "script.py", cwd=tmp_path)
        assert done.returncode == status
        assert "`linear @ head` has no effect: no module of Linear is at `head`" in done.stderr


def test_verbose_logs_each_call(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LINEAR)
    done = python(*RUN, "--verbose", "script.py", cwd=tmp_path)
    assert "casting  <built-in function linear>  to  to_bf16" in done.stdout


def test_a_log_is_a_file_of_the_process_that_began(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text(LINEAR)
    again = "import os, subprocess, sys\nos.chdir('/')\nsubprocess.run([sys.executable, sys.argv[1]], check=True)\n"
    (tmp_path / "script.py").write_text(LINEAR + again)
    python(*RUN, "--log", "casts.jsonl", "script.py", str(tmp_path / "part.py"), cwd=tmp_path)
    lines = (tmp_path / "casts.jsonl").read_text().splitlines()
    assert [json.loads(line).get("operation") for line in lines].count("linear") == 1


def test_a_name_without_effect_is_told_without_a_place_in_our_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    write_list(tmp_path / "a.txt", ["mm", "relu_"])
    _, lines = split_lines(python(*RUN, "--bf16", "a.txt", "script.py", cwd=tmp_path).stderr)
    assert len(lines) == 2
    assert "a.txt:2: `relu_` has no effect" in lines[0]


def test_a_convert_of_the_scripts_own_wins_and_a_restore_leaves_the_report(tmp_path: Path) -> None:
    own = "hmp.convert(dtype=torch.float16)\nprint(torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype)\nhmp.restore()"
    (tmp_path / "script.py").write_text(f"{LINEAR}{own}\nprint(torch.ones(2, 2).mm(torch.ones(2, 2)).dtype)\n")
    done = python(*RUN, "--require-lowered", "script.py", cwd=tmp_path)
    assert done.stdout.split()[-2:] == ["torch.float16", "torch.float32"]
    line = split_lines(done.stderr)[1][0]
    assert line.startswith("habana-mp: calls: 1 in bf16, 1 in fp16")


# ---- the report ------------------------------------------------------------------------------------------------------


def test_the_report_is_written_where_the_command_was_given_whatever_the_script_does(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"{LINEAR}import os\nos.chdir('/')\nsys.stderr = None\nsys.exit(4)\n")
    done = python(*RUN, "--report", "out.json", "script.py", cwd=tmp_path)
    assert done.returncode == 4
    report = json.loads((tmp_path / "out.json").read_text())
    calls = {(row["operation"], row["precision"]): row["calls"] for row in report["rows"]}
    assert calls == {("linear", "bf16"): 1}
    line = split_lines(done.stderr)[1][0]
    assert line.startswith("habana-mp: calls: 1 in bf16; ")
    assert " s in lower precision; " in line
    assert line.endswith(f"; the report is in {tmp_path / 'out.json'}")


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nos.mkdir('out.json')\n")
    done = python(*RUN, "--report", "out.json", "script.py", cwd=tmp_path)
    first, last, *_ = split_lines(done.stderr)[1]
    assert first.startswith("habana-mp: the report could not be written: ")
    assert last == "habana-mp: no covered operation was called"
    assert done.returncode == 0


def test_the_first_lines_of_the_report_are_printed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\nfor _ in range(3):\n    torch.ones(2, 2).mm(torch.ones(2, 2)).float().exp()\n"
    )
    first, *others = split_lines(python(*RUN, "--within", "everywhere", "script.py", cwd=tmp_path).stderr)[1]
    assert first == "habana-mp: calls: 3 in bf16, 3 in fp32"
    assert others == ["habana-mp: In float32: exp 3 calls (listed in the preset recommended)"]


def test_it_can_be_required_that_something_ran_lower(tmp_path: Path) -> None:
    product = "torch.ones(2, 2) @ torch.ones(2, 2)"
    for code, options, status, told in (
        (product, ["--opt-level", "O0"], 1, 'opt_level="O0" casts nothing'),
        ("torch.ones(2).exp()", ["--within", "everywhere"], 1, "1 call in fp32"),
        (product, [], 1, "all counted calls were outside of modules"),
        ("raise SystemExit(7)", [], 7, None),
    ):
        (tmp_path / "script.py").write_text(f"import torch\n{code}\n")
        done = python(*RUN, "--require-lowered", *options, "script.py", cwd=tmp_path)
        found = [line for line in split_lines(done.stderr)[1] if "--require-lowered: nothing ran in lower" in line]
        assert (done.returncode, len(found)) == (status, told is not None), code
        assert (told or "") in "".join(found)


def test_the_losses_of_a_training_are_those_with_a_convert_at_its_top(tmp_path: Path) -> None:
    script, converts = Path(__file__).parent / "scripts" / "word_language_model.py", tmp_path / "converts.py"
    top = "from habana_mp import hmp\nhmp.convert(preset='recommended')\n"
    converts.write_text(top + script.read_text("utf-8"), "utf-8")
    words = [converts], [*RUN, "--require-lowered", "--report", "out.json", script], [script]
    by_hand, ours, plain = (python(*one, cwd=tmp_path, with_dynamo=True) for one in words)
    assert (by_hand.returncode, ours.returncode) == (0, 0), by_hand.stderr + ours.stderr
    assert "loss" in ours.stdout
    assert by_hand.stdout == ours.stdout != plain.stdout
    data = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert data["totals"]["by_precision"]["bf16"]["calls"] > 0
    assert {"linear", "lstm"} <= {row["operation"] for row in data["rows"]}


# ---- wrong usage -----------------------------------------------------------------------------------------------------


def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("print('it ran')")
    write_list(tmp_path / "wrong.txt", ["sofmax"])
    for words, why in {
        "": "a SCRIPT to run is missing",
        "--verbose": "a SCRIPT to run is missing",
        "-m": "a MODULE must follow -m",
        "none.py": "cannot open the script: [Errno 2] No such file or directory: 'none.py'",
        ".": "a folder without a `__main__.py` is no script",
        "--bf16 none.txt script.py": "the operation list does not exist",
        "--fp32 wrong.txt script.py": "wrong.txt:1: unknown operation `sofmax`",
        "--opt-level O3 script.py": "`opt_level` must be one of",
        "--preset mine script.py": "`preset` must be one of",
        "--dtype fp8 script.py": "argument --dtype: invalid choice: 'fp8'",
        "--within net script.py": "argument --within: invalid choice: 'net'",
        "--detail all script.py": "argument --detail: invalid choice: 'all'",
        "--report out.txt script.py": "--report must be a file that ends in .html or .json",
        "--report none/out.json script.py": "--report must be in a folder that is there",
        "--quick yes script.py": "unrecognized arguments: --quick",
        "--bf16": "argument --bf16: expected one argument",
    }.items():
        with pytest.raises(SystemExit) as ended:
            cli.main(["run", *words.split()])
        shown = capsys.readouterr()
        assert (ended.value.code, shown.out) == (2, ""), words
        assert why in shown.err


def test_an_option_behind_the_script_is_pointed_out(tmp_path: Path) -> None:
    ours = ["--report", "--opt-level=O1"]
    for read, status, pointed_out in (
        ("", "0", ours),
        ("self.report(opt.level)", "0", ours),
        ('("--report", "--opt-level")', "0", []),
        ("report: str; opt_level: str", "0", []),
        ("report: str; opt_level: str", "2", ours),  # wrong usage
    ):
        (tmp_path / "script.py").write_text(f"import sys\nprint(sys.argv[1:])\n# {read}\nsys.exit(int(sys.argv[1]))\n")
        done = python(*RUN, "script.py", status, "--report", "lines", "--lr=1", "--opt-level=O1", cwd=tmp_path)
        assert done.stdout == f"['{status}', '--report', 'lines', '--lr=1', '--opt-level=O1']\n"
        lines = [line for line in done.stderr.splitlines() if "stands behind the script" in line]
        assert [line.split("`")[1] for line in lines] == pointed_out
        assert all(line.endswith("write options of habana-mp before script.py") for line in lines)
