"""One round of training, from its first step or its last checkpoint to its end."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from insclr.checkpoint import beside, load_latest, save_checkpoint
from insclr.errors import UserError
from insclr.mining.criteria import Criteria
from insclr.mining.verdicts import Verdicts
from insclr.model.network import DescriptorNetwork
from insclr.neighbours.pool import Pool
from insclr.progress import progress_bar
from insclr.ranks import Ranks
from insclr.recipe import RoundRecipe
from insclr.tracking import Tracker
from insclr.training.average import WeightAverage
from insclr.training.banks import RoundBanks
from insclr.training.schedule import rate_factor
from insclr.training.sources import CachedSource, Source
from insclr.training.step import Batch, Decision, contrast, decide

_TIMED_STEPS = 8  # so many steps tell how fast a round goes
_LOG_EVERY = 10
_LAYERS = {"all": "all layers", "late": "late layers", "fc": "fc"}


@dataclass
class Round:
    """Everything one round works with."""

    number: int  # from 1
    recipe: RoundRecipe
    network: DescriptorNetwork
    source: Source
    pool: Pool
    banks: RoundBanks
    criteria: Criteria
    folder: Path  # its checkpoints
    tracker: Tracker
    seed: int
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    seconds: float = 0.0  # time budget; 0 = none
    verdicts: Verdicts | None = None  # on every candidate, where the round decides once
    instances: Tensor | None = None  # (N,) true instance of each image, -1 unknown: for logging only
    ranks: Ranks = field(default_factory=Ranks)
    sums: dict[str, float] = field(default_factory=dict)  # of what was logged since the last record


def train_round(this: Round) -> int:
    """Train until the round's steps or its time are used up; give back how many steps it took."""
    recipe, network = this.recipe, this.network
    network.frozen_batch_norm = recipe.batch_norm == "frozen"
    optimizer = _optimizer(recipe, network)
    # Half-precision gradients underflow without scaling; bf16 and fp32 need none.
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.precision == "fp16" and torch.cuda.is_available())
    average = WeightAverage(network, recipe.average) if recipe.average else None
    weight = this.ranks.weight(recipe.tuples)
    step, steps, spent = _resume(this, optimizer, average)
    began = time.monotonic() - spent

    title = f"round {this.number} ({recipe.method}, {_LAYERS[recipe.train]})"
    with progress_bar(title, steps, done=step) as bar:
        batches = this.source.batches(step, recipe.steps)
        while step < steps:
            # Everything random in a step follows from the seed and the step alone: nothing to store or replay.
            torch.manual_seed(step_seed(this.seed, this.number, step))
            generator = torch.Generator().manual_seed(step_seed(this.seed, this.number, step))
            batch = next(batches)
            factor = rate_factor(recipe, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor

            everyone = batch.everyone
            if this.verdicts is None:
                this.banks.write(everyone.ids, everyone.plain, everyone.augmented, step)
            else:
                this.banks.augmented.write(everyone.ids, everyone.augmented, step)
            decision = decide(batch, this.pool, this.banks, this.criteria, this.verdicts)
            value = contrast(batch, decision, this.pool, this.banks, this.criteria, generator, this.verdicts)
            this.pool.give_back()
            if not torch.isfinite(value.loss):
                raise UserError(_not_a_number(this, step, optimizer))

            optimizer.zero_grad(set_to_none=True)
            scaler.scale(value.loss * weight).backward()
            if recipe.clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            scaler.step(optimizer)
            scaler.update()
            if average:
                average.update(network)
            step += 1

            if recipe.refresh_bank and step % recipe.refresh_bank == 0:
                _refresh(this, step)
            shown = _log(
                this,
                step,
                value.__dict__
                | {"bank_positives": decision.mined, "lr_factor": factor}
                | _precision(this, batch, decision),
            )
            bar.advance(1, **shown)
            if step == _TIMED_STEPS and this.seconds:
                pace = (time.monotonic() - began) / step
                steps = this.ranks.from_first(max(step, min(recipe.steps, int(this.seconds / pace))))
                this.tracker.event(this.number, "planned", step=step, steps=steps, seconds_per_step=pace)
            if step % this.checkpoint_every == 0 or (step == _TIMED_STEPS and this.seconds) or step >= steps:
                _checkpoint(this, step, steps, time.monotonic() - began, optimizer, average)
    if average:
        average.copy_to(network)
    return step


def step_seed(seed: int, number: int, step: int) -> int:
    """One number for one step of one round of one run."""
    return (seed * 1_000_003 + number) * 1_000_000_007 + step


def _optimizer(recipe: RoundRecipe, network: DescriptorNetwork) -> torch.optim.Adam:
    fc = list(network.fc.parameters()) if network.fc is not None else []
    groups: list[dict[str, Any]] = [{"params": fc, "base_lr": recipe.fc_lr or recipe.lr}]
    if recipe.train == "all":
        rest = [*network.backbone.parameters(), *network.pooling.parameters()]
        groups.append({"params": rest, "base_lr": recipe.lr})
    if recipe.train == "late":
        rest = [*network.backbone.late_parameters(), *network.pooling.parameters()]
        groups.append({"params": rest, "base_lr": recipe.lr})
    groups = [group for group in groups if group["params"]]
    network.requires_grad_(False)
    for group in groups:
        for parameter in group["params"]:
            parameter.requires_grad_(True)
    return torch.optim.Adam(groups, lr=recipe.lr, weight_decay=recipe.weight_decay)


def _refresh(this: Round, step: int) -> None:
    if isinstance(this.source, CachedSource):
        for first, plain, augmented in this.source.descriptors(torch.default_generator):
            this.banks.plain.fill(plain, step, first)
            this.banks.augmented.fill(augmented, step, first)


def _precision(this: Round, batch: Batch, decision: Decision) -> dict[str, float]:
    """Share of the pseudo positives that are true ones, where labels were given (for the log alone)."""
    if this.instances is None:
        return {}
    truth = this.instances.to(batch.ids.device)
    anchor = truth[batch.ids[:, :1]]  # (T, 1)
    same = (truth[batch.ids] == anchor)[:, 1:]
    chosen = decision.selected[:, 1:]
    shares = {"nn_precision": same.float().mean().item()}
    if chosen.any():
        shares["batch_precision"] = same[chosen].float().mean().item()
    if (
        decision.expansion is not None
        and decision.pool_ids is not None
        and decision.expansion.positives.any()
    ):
        same = truth[decision.pool_ids] == anchor  # (T, P)
        shares["memory_precision"] = same[decision.expansion.positives].float().mean().item()
    return shares


def _log(this: Round, step: int, values: dict[str, Any]) -> dict[str, str]:
    """Add up the numbers of the last steps; write their means every so often, and show the newest."""
    numbers = {
        name: float(value.detach() if isinstance(value, Tensor) else value) for name, value in values.items()
    }
    tuples = len(this.ranks.share(this.recipe.tuples))
    for name, number in numbers.items():
        this.sums[name] = this.sums.get(name, 0.0) + number * tuples
        this.sums[f"#{name}"] = this.sums.get(f"#{name}", 0.0) + tuples
    if step % _LOG_EVERY == 0:
        _collect_sums(this)
        means = {name: this.sums[name] / this.sums[f"#{name}"] for name in this.sums if name[0] != "#"}
        this.tracker.step(this.number, step, **means)
        this.sums.clear()
    positives = numbers["batch_positives"] + numbers["bank_positives"]
    return {"loss": f"{numbers['loss']:.3f}", "positives": f"{positives:.1f}"}


def _collect_sums(this: Round) -> None:
    """Move the sums of all ranks to the first one."""
    if this.ranks.alone:
        return
    total: dict[str, float] = {}
    for sums in this.ranks.collect(this.sums):
        for name, value in sums.items():
            total[name] = total.get(name, 0.0) + value
    this.sums = total if this.ranks.first else {}


def _checkpoint(
    this: Round,
    step: int,
    steps: int,
    spent: float,
    optimizer: torch.optim.Adam,
    average: WeightAverage | None,
) -> None:
    _collect_sums(this)
    if not this.ranks.first:
        return
    state = {
        "step": step,
        "steps": steps,
        "spent": spent,
        "network": this.network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "banks": this.banks.state_dict(),
        "average": average.state_dict() if average else None,
        "sums": dict(this.sums),
    }
    save_checkpoint(this.folder, step, state, this.keep_checkpoints, this.banks.files)


def _resume(
    this: Round, optimizer: torch.optim.Adam, average: WeightAverage | None
) -> tuple[int, int, float]:
    state = load_latest(this.folder)
    if state is None:
        return 0, this.recipe.steps, 0.0
    this.network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    copies = {name: beside(this.folder, state["step"], name) for name in state["banks"]}
    this.banks.restore(state["banks"], copies, this.ranks)
    if average and state["average"] is not None:
        average.load_state_dict(state["average"])
    this.sums = dict(state["sums"]) if this.ranks.first else {}
    return state["step"], state["steps"], state["spent"]


def _not_a_number(this: Round, step: int, optimizer: torch.optim.Adam) -> str:
    return (
        f"The loss is not a number in round {this.number}, step {step}. Lower the learning rate (now "
        f"{optimizer.param_groups[-1]['lr']:.1e}; for example --set rounds.{this.number - 1}.lr="
        f"{this.recipe.lr / 10:.0e}) or clip the gradient (--set rounds.clip=1), and start a new run. "
        f"Checkpoints written before are whole."
    )
