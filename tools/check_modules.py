"""Modules stay readable: about 300 lines each, 500 at most; and every package is shipped."""

import subprocess
import sys
import tomllib
from pathlib import Path

LIMIT = 500
ROOT = Path(__file__).parent.parent


def main() -> int:
    """0 when every module is within the limit and every package is listed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.split()
    problems = []
    folders = set()
    for name in listed:
        path = ROOT / name
        if path.is_symlink() or not path.exists():
            continue
        lines = len(path.read_text().splitlines())
        if lines > LIMIT:
            problems.append(f"{name} has {lines} lines, at most {LIMIT}: split it by reasons")
        if path.name == "__init__.py":
            folders.add(path.parent.relative_to(ROOT))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    shipped = set(project["packages"])
    tops = {str(folder): name for name, folder in project["package-dir"].items()}
    for folder in sorted(folders):
        top, *rest = folder.parts
        if top in tops and ".".join([tops[top], *rest]) not in shipped:
            problems.append(f"{folder} is a package that pyproject.toml does not list")
    sys.stdout.write("\n".join([*problems, ""]) if problems else "modules: fine\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
