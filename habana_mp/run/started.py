"""A script that a script under ``habana-mp run`` starts: ``python -m habana_mp.run.started HOW [-m] SCRIPT ...``."""

from __future__ import annotations

import json
import sys

from habana_mp.run import command
from habana_mp.run.options import Conversion
from habana_mp.run.script import Script


def main(words: list[str]) -> None:
    how = json.loads(words[0])
    is_module = words[1] == "-m"
    command.begin_child(Conversion(**how["conversion"]), how["folder"], how["gaudi"])
    command.run_as_its_own(Script(words[2 if is_module else 1 :], is_module=is_module))


if __name__ == "__main__":
    main(sys.argv[1:])
