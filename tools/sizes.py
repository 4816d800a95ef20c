"""Measures the sizes in docs/install.md: builds the wheels, installs one, and rewrites the table.

    python -m tools.sizes

It downloads from the package index, so `make docs` does not include it. The image's size is
measured only where docker or podman can build it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import docs

ROOT = Path(__file__).parents[1]
COMMAND = "python -m tools.sizes"
IMAGE = "rmqkit-sizes"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = "\n".join(["| what | size |", "|---|---:|", *rows(Path(folder))])
    page = docs.DOCS / "install.md"
    page.write_text(docs.replaced(page.read_text(), {"sizes": table}, COMMAND))


def rows(folder: Path) -> list[str]:
    found = []
    for source in (ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))):
        run(sys.executable, "-m", "build", "--outdir", folder, source)
    found += [f"| `{path.name}` | {path.stat().st_size / 1000:,.0f} kB |" for path in sorted(folder.glob("*.whl"))]
    found += [f"| `{path.name}` | {path.stat().st_size / 1000:,.0f} kB |" for path in folder.glob("rmqkit-*.tar.gz")]
    wheel = next(folder.glob("rmqkit-*.whl"))
    for extras in ("", "[metrics]", "[compression]", "[report]"):
        target = folder / f"installed{extras}"
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", target, f"{wheel}{extras}")
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        found.append(f"| `pip install rmqkit{extras}`, installed files | {size / 1e6:,.0f} MB |")
    return found + image()


def image() -> list[str]:
    """Return the row of the image; [] if neither docker nor podman has a running engine."""
    builder = shutil.which("podman") or shutil.which("docker")
    if builder is None or subprocess.run([builder, "info"], capture_output=True).returncode != 0:
        return []
    run(builder, "build", "--file", ROOT / "Containerfile", "--tag", IMAGE, ROOT)
    shown = subprocess.run([builder, "image", "inspect", "--format", "{{.Size}}", IMAGE], capture_output=True, check=True)
    return [f"| the image | {int(shown.stdout) / 1e6:,.0f} MB |"]


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
