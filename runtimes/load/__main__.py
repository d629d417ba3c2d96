"""Run as a program."""

from canaryctl.runtimes.load.command import main

if __name__ == "__main__":
    raise SystemExit(main())
