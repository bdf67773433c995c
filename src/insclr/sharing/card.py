"""Write the model card: what a model is, how it was made and what it is for, in Markdown with front matter."""

from collections.abc import Sequence

from insclr.model.stored import StoredModel
from insclr.recipe import Recipe, to_toml
from insclr.sharing.card_results import Result
from insclr.sharing.origin import Origin

_TASK = "image-feature-extraction"
_TAGS = ("insclr", "image-retrieval", "instance-retrieval", "self-supervised-learning")
_USE = """\
For finding photos of the same particular thing (this building, this product, this animal) in collections like the
one below: search, groups, near-duplicates. Not for telling categories apart, and not for recognising people.

- Things unlike those that it was trained on are described as the backbone describes them, or little better.
- A similarity is not a probability: `insclr calibrate` makes it one on the collection at hand.
- The backbone learned from images of the web, with what they show too often and too rarely.
- Nobody has looked for unfair differences between kinds of things or places. Do not decide about people by it."""
_CITATION = """\
The method: Zelu Deng, Yujie Zhong, Sheng Guo, Weilin Huang, *InsCLR: Improving Instance Retrieval with
Self-Supervision*, AAAI 2022."""


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
    license = license or origin.license
    licence = f"This model: {license}." if license else "Its licence was not stated by whoever shared it."
    parts = [
        _front_matter(repo, origin, results, license),
        f"# {repo.partition('/')[2]}\n\n{_summary(stored.recipe, stored)}",
        "## Use\n\n```console\n"
        f"$ pip install insclr\n$ insclr pull {repo} --out model.safetensors\n"
        "$ insclr index model.safetensors PHOTOS --store STORE\n$ insclr serve STORE\n```",
        f"## Intended use and limits\n\n{_USE}",
        f"## Training data\n\n{data}",
        f"## Results\n\n{_results(results)}",
        f"## Licence\n\n{licence} It holds, in changed form: {origin.about}",
        f"## Recipe\n\n```toml\n{to_toml(stored.recipe)}```",
        f"## Citation\n\n{_CITATION}",
    ]
    return "\n\n".join(parts) + "\n"


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
    return f"---\n{data.to_yaml()}\n---"


def _summary(recipe: Recipe, stored: StoredModel) -> str:
    network, images = recipe.network, recipe.descriptor
    length = stored.weights["fc.weight"].shape[0] if "fc.weight" in stored.weights else 0
    pooling = f"{network.pooling}, p = {network.gem_p:g}" if network.pooling == "gem" else network.pooling
    methods = ", ".join(dict.fromkeys(each.method.name for each in recipe.rounds))
    rows = [
        ("backbone", network.backbone),
        ("pooling", pooling),
        (
            "descriptor",
            f"unit vector of {length or 'as many'} numbers{'' if length else ' as the backbone has features'}",
        ),
        (
            "images",
            f"{images.size} pixels, {images.fit}; scales {', '.join(f'{s:g}' for s in images.scales)}",
        ),
        ("recipe", f"{recipe.name}{f': {recipe.about}' if recipe.about else ''}"),
        ("method", f"{methods}; {len(recipe.rounds)} rounds"),
        ("digest", f"`{stored.digest}`"),
    ]
    table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows)])
    return (
        "A network that describes a photo by a unit vector: photos of the same particular thing have a high inner "
        f"product. Made with insclr.\n\n{table}\n\nThe digest is over the weights and the recipe; `insclr pull` "
        "refuses a file that does not have its own."
    )


def _results(results: Sequence[Result]) -> str:
    if not results:
        return "Not measured, or not told."
    names = list(dict.fromkeys(name for result in results for name in result.figures))
    lines = [
        " | ".join(["| measured on", *(_metric_title(name) for name in names)]) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for result in results:
        figures = [f"{result.figures[name]:.1f}" if name in result.figures else "" for name in names]
        lines.append(" | ".join([f"| {_cell(result.measured_on)}", *figures]) + " |")
    return "In percent.\n\n" + "\n".join(lines)


def _metric_title(name: str) -> str:
    return name.replace("map", "mAP").replace("mp", "mP").replace("r@", "R@")


def _cell(text: str) -> str:
    """Text in a Markdown table: a name from elsewhere ends neither its cell nor its line."""
    return " ".join(text.split()).replace("|", "\\|")
