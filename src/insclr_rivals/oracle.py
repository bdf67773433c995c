"""The ceiling of mining: our own method with labels in place of mining. SUPERVISED, on purpose."""

from typing import ClassVar, Literal

import torch

from insclr.methods.method import Batch, Method, Needs, Pairs, Prepared, RoundStart, label_batch
from insclr.recipe import MethodSettings, setting
from insclr_rivals.samplers import GroupSampler, require_instances


class OracleSettings(MethodSettings):
    """Our own method with labels in place of mining: the most that mining could give."""

    supervised: ClassVar[bool] = True
    name: Literal["oracle"] = setting("oracle", "WITH LABELS: what mining would find if it were never wrong")
    neighbours: int = setting(3, "N_b: images of the anchor's instance in a tuple", ge=1)


class Oracle(Method):
    """Images of the anchor's instance attract, images of all other instances repel."""

    settings_class = OracleSettings
    needs = Needs(labels=True)

    def __init__(self, settings: OracleSettings) -> None:
        self.settings = settings

    def prepare(self, start: RoundStart) -> Prepared:
        """Draw tuples from the images of one instance."""
        self._instances = require_instances(start).to(start.device)
        members = 1 + self.settings.neighbours
        self.sampler = GroupSampler(self._instances.cpu(), start.tuples, members, start.seed)
        return Prepared({"neighbours": self.settings.neighbours})

    def label(self, batch: Batch, step: int, generator: torch.Generator) -> Pairs:  # noqa: ARG002
        """As the calibrated method: members of the tuple attract, others of the instance are no negatives.

        Labels may name some instances only, but all images of each: an image without a label shows another instance
        than a labelled anchor.
        """
        anchor = self._instances[batch.ids[:, :1]]  # (T, 1)
        same = self._instances[batch.ids] == anchor  # (T, M); all of them, unless an image was replaced
        global_ids = batch.global_batch.ids
        return label_batch(
            batch.ids,
            same,
            ignored=self._instances[global_ids.reshape(-1)] == anchor,
            batch_tuple_ids=global_ids,
            first_tuple=batch.first_tuple,
        )
