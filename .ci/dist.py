"""Build the sdist, and the wheel from it, twice; keep them in dist/ if both times gave the same bytes.

SOURCE_DATE_EPOCH is the time that all files in them bear; `make dist` takes that of the last commit.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PARTS = ("src", "tests", "docs", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "CITATION.cff")
_PARTS += (
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "MANIFEST.in",
    "Makefile",
    "constraints.txt",
    "constraints-min.txt",
    "pyproject.toml",
)
_PARTS += ("mkdocs.yml", ".ci", "benchmarks", "notebooks")


def build(folder: Path, epoch: int) -> list[Path]:
    """An sdist and a wheel of the project as it stands, made in `folder`."""
    checkout, made = folder / "checkout", folder / "made"
    made.mkdir(parents=True)
    checkout.mkdir()
    # A copy: a build leaves files beside the sources, and would pick up those of an earlier one.
    for name in _PARTS:
        source = _ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy2(source, checkout / name)
    sdist = _hook("build_sdist", checkout, made)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    wheel = _hook("build_wheel", unpacked, made)
    _repack(sdist, epoch)
    return [sdist, wheel]


def _hook(name: str, source: Path, out: Path) -> Path:
    """Call a hook of the build backend (PEP 517); the file that it made."""
    code = f"import sys; from setuptools import build_meta; build_meta.{name}(sys.argv[1])"
    before = set(out.iterdir())
    subprocess.run([sys.executable, "-c", code, str(out)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (made,) = set(out.iterdir()) - before
    return made


def _repack(sdist: Path, epoch: int) -> None:
    """Write the archive again without times, owners and an order that differ from build to build."""
    with tarfile.open(sdist) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive.getmembers() if one.isfile()}  # type: ignore[union-attr]
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(files):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(files[path]), epoch, 0o644
            archive.addfile(entry, io.BytesIO(files[path]))


def main() -> None:
    """Build twice, compare, keep."""
    epoch = int(os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800"))
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(Path(folder) / name, epoch) for name in ("first", "second"))
        for one, two in zip(first, second, strict=True):
            digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (one, two)]
            if one.name != two.name or digests[0] != digests[1]:
                sys.exit(f"{one.name} differs between two builds: {' '.join(digests)}")
            print(digests[0], one.name, f"{one.stat().st_size:,} bytes")
        shutil.rmtree(_ROOT / "dist", ignore_errors=True)
        (_ROOT / "dist").mkdir()
        for one in first:
            shutil.move(one, _ROOT / "dist" / one.name)


if __name__ == "__main__":
    main()
