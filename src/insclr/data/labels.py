"""Read labels.csv: the instance that each image shows, with optional roles and boxes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from insclr.arrays import Ids
from insclr.data.decode import Box
from insclr.data.images import ImageList
from insclr.data.table import read_table
from insclr.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

BOX_COLUMNS = ("x1", "y1", "x2", "y2")
ROLES = ("query", "index")


@dataclass(frozen=True)
class Labels:
    """The rows of a labels file. Without roles every image is a query against all the others."""

    root: Path  # relative paths start here
    paths: tuple[str, ...]
    instances: tuple[str, ...]
    roles: tuple[str, ...] | None = None  # "query" or "index" for each image
    boxes: tuple[Box | None, ...] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def images(self) -> ImageList:
        """The images in the order of the rows."""
        return ImageList(root=self.root, paths=self.paths)

    @property
    def query_boxes(self) -> tuple[Box | None, ...] | None:
        """The boxes of the queries. The box of a row with the role "index" only marks the instance."""
        if self.boxes is None or self.roles is None:
            return self.boxes
        return tuple(
            None if role == "index" else box for role, box in zip(self.roles, self.boxes, strict=True)
        )

    def subset(self, ids: Ids) -> "Labels":
        """The rows `ids`, in that order."""
        return Labels(
            self.root,
            tuple(self.paths[i] for i in ids),
            tuple(self.instances[i] for i in ids),
            None if self.roles is None else tuple(self.roles[i] for i in ids),
            None if self.boxes is None else tuple(self.boxes[i] for i in ids),
        )

    def instance_ids(self) -> Ids:
        """One integer for each row, equal where the instance is the same."""  # (N,)
        return np.unique(np.array(self.instances), return_inverse=True)[1].astype(np.int64)

    def role_ids(self, role: str) -> Ids:
        """The rows with this role; all rows when the file has no role column."""
        if self.roles is None:
            return np.arange(len(self))
        return np.flatnonzero(np.array(self.roles) == role)


def read_labels(file: Path | str, root: Path | str | None = None) -> Labels:
    """Read columns path, instance[, role][, x1, y1, x2, y2]; paths are relative to `root`, else to the file.

    Anything malformed is a UserError that names the line.
    """
    file = Path(file)
    rows = list(_rows(file))
    if not rows:
        raise UserError(f"{file}: no images are listed. Add one line for each image: path,instance")
    first_line: dict[str, int] = {}
    for line, row in rows:
        if first_line.setdefault(row["path"], line) != line:
            raise UserError(
                f"{file}, line {line}: {row['path']} is already on line {first_line[row['path']]}"
            )
    has = rows[0][1].keys()
    if 0 < len(has & set(BOX_COLUMNS)) < len(BOX_COLUMNS):
        raise UserError(f"{file}, line 1: boxes need all four columns {','.join(BOX_COLUMNS)}")
    labels = Labels(
        root=Path(root) if root is not None else file.parent,
        paths=tuple(row["path"] for _, row in rows),
        instances=tuple(row["instance"] for _, row in rows),
        roles=tuple(row["role"] for _, row in rows) if "role" in has else None,
        boxes=tuple(_box(file, line, row) for line, row in rows) if "x1" in has else None,
    )
    for role in ROLES:
        if len(labels.role_ids(role)) == 0:
            raise UserError(f'{file}: no line has the role "{role}". Mark some images as {role}.')
    return labels


def match_instances(labels: Labels, images: ImageList) -> "Tensor":
    """The true instance of every image as a number, -1 for images without a label."""
    by_file = {
        (labels.root / path).resolve(): number
        for path, number in zip(labels.paths, labels.instance_ids().tolist(), strict=True)
    }
    found = [by_file.get(images.file(i).resolve(), -1) for i in range(len(images))]
    if max(found) < 0:
        raise UserError(
            f"None of the labels names an image of the collection: labels' paths are relative to {labels.root} "
            f"(for example {labels.root / labels.paths[0]}), the images lie in {images.root}."
        )
    import torch  # imported late: unreadable labels are reported before torch is loaded

    return torch.tensor(found)


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, cells by column) of every line that is not blank, with a path and an instance."""
    for line, cells in read_table(file, ("path", "instance")):
        row = {column: cell.strip() for column, cell in cells.items()}
        for column in ("path", "instance"):
            if not row[column]:
                raise UserError(f"{file}, line {line}: the {column} is empty")
        row["path"] = PurePath(row["path"]).as_posix()
        if row.get("role", "query") not in ROLES:
            raise UserError(f'{file}, line {line}: the role is "{row["role"]}"; it must be query or index')
        yield line, row


def _box(file: Path, line: int, row: dict[str, str]) -> Box | None:
    cells = [row[column] for column in BOX_COLUMNS]
    if not any(cells):
        return None
    try:
        x1, y1, x2, y2 = (float(cell.replace(",", ".")) for cell in cells)
    except ValueError:
        raise UserError(f"{file}, line {line}: the box {','.join(cells)} is not four numbers") from None
    if not all(map(math.isfinite, (x1, y1, x2, y2))):
        raise UserError(f"{file}, line {line}: the box {','.join(cells)} has no finite size")
    if not (x1 < x2 and y1 < y2):
        raise UserError(
            f"{file}, line {line}: the box {','.join(cells)} is empty; expected x1 < x2 and y1 < y2"
        )
    return x1, y1, x2, y2
