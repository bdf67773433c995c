"""Write every package that insclr depends on, with version and licence, into docs/research/packages.md.

python tests/helpers/licences.py
"""

import datetime
import re
import tomllib
from importlib import metadata
from pathlib import Path

_DOC = Path(__file__).parents[2] / "docs" / "research" / "packages.md"
_PROJECT = Path(__file__).parents[2] / "pyproject.toml"
_BEGIN, _END = "<!-- packages -->\n", "<!-- end of packages -->\n"


def packages() -> dict[str, metadata.Distribution]:
    """All that the package and its extras but `dev` need, however far down."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    extras = [group for name, group in project["optional-dependencies"].items() if name != "dev"]
    found: dict[str, metadata.Distribution] = {}
    waiting = [*project["dependencies"], *(one for group in extras for one in group)]
    while waiting:
        requirement = waiting.pop()
        wanted = re.match(r"[A-Za-z0-9._-]+", requirement)
        if wanted is None or "extra ==" in requirement.replace("extra==", "extra =="):
            continue  # what an extra of another package asks for
        key = re.sub(r"[-_.]+", "-", wanted[0]).lower()
        if key in found or key == project["name"]:
            continue
        try:
            found[key] = metadata.distribution(wanted[0])
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed here
        waiting += found[key].requires or ()
    return found


def licence(distribution: metadata.Distribution) -> str:
    """What a package says of its licence, in a few words."""
    about = distribution.metadata
    if about.get("License-Expression"):  # type: ignore[attr-defined]
        return str(about["License-Expression"])
    classifiers = [one for one in about.get_all("Classifier") or () if one.startswith("License ::")]
    names = [one.rsplit(" :: ", 1)[-1] for one in classifiers if one != "License :: OSI Approved"]
    first = (about.get("License") or "").strip().splitlines()[:1]  # type: ignore[attr-defined]
    return ", ".join(names) or (first[0][:60] if first else "not stated in its metadata")


def main() -> None:
    """Replace the table between the marks."""
    rows = [
        f"| {name} | {one.version} | {licence(one)} |\n"
        for name, one in sorted(packages().items())
        if one.version
    ]
    today = datetime.datetime.now(datetime.UTC).date()
    table = (
        f"{len(rows)} packages, as installed on {today}.\n\n| package | version | licence |\n|---|---|---|\n"
    )
    text = _DOC.read_text()
    before, rest = text.split(_BEGIN)
    _DOC.write_text(before + _BEGIN + table + "".join(rows) + _END + rest.split(_END)[1])


if __name__ == "__main__":
    main()
