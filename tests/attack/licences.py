"""Write every package that insclr brings along, with version and licence, into docs/security.md.

python tests/attack/licences.py
"""

import datetime
import re
from importlib import metadata
from pathlib import Path

_DOC = Path(__file__).parents[2] / "docs" / "security.md"
_BEGIN, _END = "<!-- packages -->\n", "<!-- end of packages -->\n"
_EXTRAS = {"web", "track", "milvus", "onnx"}


def packages() -> dict[str, metadata.Distribution]:
    """All that the package and its extras need, however far down."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [("insclr", _EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system, or an extra that is not installed here
        for requirement in distribution.requires or ():
            wanted = re.match(r"[A-Za-z0-9._-]+", requirement)
            extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", requirement)
            if wanted is None or (extra is not None and extra[1] not in extras):
                continue
            key = re.sub(r"[-_.]+", "-", wanted[0]).lower()
            if key not in found and key != "insclr":
                waiting.append((wanted[0], set()))
                try:
                    found[key] = metadata.distribution(wanted[0])
                except metadata.PackageNotFoundError:
                    continue
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
