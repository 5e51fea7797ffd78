"""``python -m habana_mp``: the same as ``habana-mp``."""

from habana_mp.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
