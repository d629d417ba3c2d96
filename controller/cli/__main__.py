"""``python -m canaryctl.controller.cli``: the command where no script is installed."""

from canaryctl.controller.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
