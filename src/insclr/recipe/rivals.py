"""The settings of the paper's rivals and of the supervised anchors: few keys each, the published numbers as defaults.

Numbers that were published for the 1.28 million images of ImageNet are written as a share of the collection, so that
they mean the same for a thousand images.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from insclr.recipe.tables import MethodTable, setting


class SimclrSettings(MethodTable):
    """SimCLR (Chen et al. 2020): two views of an image attract, all other images of the batch repel."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["simclr"] = setting(
        "simclr", "two views of an image attract, the other images of the batch repel"
    )
    temperature: float = setting(0.1, "of the softmax over the batch", gt=0)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class MocoSettings(MethodTable):
    """MoCo v2 (Chen et al. 2020): as SimCLR, against a queue of what a slow copy of the network saw."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["moco-v2"] = setting(
        "moco-v2", "two views of an image attract, a queue of earlier images repels"
    )
    temperature: float = setting(0.2, "of the softmax over the queue", gt=0)
    momentum: float = setting(0.999, "share of itself that the slow copy keeps in every step", ge=0, lt=1)
    queue: int = setting(65536, "images in the queue; at most half of the collection", ge=1)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class ByolSettings(MethodTable):
    """BYOL (Grill et al. 2020): predict what a slow copy sees in another view; nothing repels."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["byol"] = setting("byol", "predict what a slow copy sees in another view; nothing repels")
    momentum: float = setting(0.99, "share of itself that the slow copy keeps in every step", ge=0, lt=1)
    hidden: int = setting(
        4096, "width of the projection and prediction heads, thrown away after training", ge=1
    )
    projected: int = setting(256, "length of their output", ge=1)


class SwavSettings(MethodTable):
    """SwAV (Caron et al. 2020): predict a view's assignment to prototypes from another view."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["swav"] = setting("swav", "predict a view's assignment to prototypes from another view")
    temperature: float = setting(0.1, "of the softmax over prototypes", gt=0)
    images_per_prototype: float = setting(427.0, "how many prototypes there are", ge=1)
    epsilon: float = setting(0.05, "smoothness of the even assignment (Sinkhorn)", gt=0)
    queue: int = setting(3840, "earlier images that are assigned too; at most half of the collection", ge=0)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class DeepClusterSettings(MethodTable):
    """DeepCluster (Caron et al. 2018): k-means every epoch, then classify the images by cluster."""

    own_loss: ClassVar[bool] = True
    name: Literal["deepcluster"] = setting(
        "deepcluster", "k-means every epoch, then classify images by cluster"
    )
    images_per_cluster: float = setting(128.0, "how many clusters k-means makes", ge=1)
    temperature: float = setting(0.1, "of the softmax over clusters", gt=0)


class PclSettings(MethodTable):
    """PCL (Li et al. 2021): MoCo, and k-means centres of several granularities as further positives."""

    own_loss: ClassVar[bool] = True
    views: ClassVar[int] = 2
    name: Literal["pcl"] = setting(
        "pcl", "MoCo, and attraction to the centres of k-means at several granularities"
    )
    images_per_cluster: tuple[Annotated[float, Field(ge=1)], ...] = setting(
        (51.0, 26.0, 13.0), "how many clusters k-means makes, for each granularity", min_length=1
    )
    alpha: float = setting(10.0, "keeps the concentration of small clusters from growing too large", gt=0)
    warmup_epochs: int = setting(2, "epochs without clusters (published: 20 of 200)", ge=0)
    temperature: float = setting(
        0.2, "of the softmax over the queue; mean concentration of the clusters", gt=0
    )
    momentum: float = setting(0.999, "share of itself that the slow copy keeps in every step", ge=0, lt=1)
    queue: int = setting(16384, "images in the queue; at most half of the collection", ge=1)
    hidden: int = setting(2048, "width of the projection head, which is thrown away after training", ge=1)
    projected: int = setting(128, "length of its output", ge=1)


class ClusterContrastSettings(MethodTable):
    """Cluster Contrast (Dai et al. 2022), from unsupervised re-identification."""

    own_loss: ClassVar[bool] = True
    name: Literal["cluster-contrast"] = setting(
        "cluster-contrast",
        "DBSCAN of k-reciprocal Jaccard distances every epoch, a memory of cluster centres",
    )
    k1: int = setting(30, "neighbours that must be mutual", ge=2)
    k2: int = setting(6, "neighbours whose sets are averaged", ge=1)
    eps: float = setting(0.6, "DBSCAN: largest Jaccard distance of neighbours", gt=0, lt=1)
    min_images: int = setting(4, "DBSCAN: images within eps that make a core image, itself among them", ge=1)
    reliable: bool = setting(False, "keep only what is independent and compact (the gate of SpCL)")
    images_per_tuple: int = setting(16, "images of one cluster in a tuple", ge=1)
    temperature: float = setting(0.05, "of the softmax over cluster centres", gt=0)
    momentum: float = setting(
        0.1, "share of itself that a centre keeps when an image of it is seen", ge=0, lt=1
    )


class ScanNnSettings(MethodTable):
    """The neighbours of SCAN (Van Gansbeke et al. 2020): found once, before training, and never again."""

    name: Literal["scan-nn"] = setting(
        "scan-nn", "neighbours by the pretrained features are positives, for good"
    )
    nearest: int = setting(20, "so many of an image's nearest are taken for the same instance", ge=1)
    neighbours: int = setting(3, "N_b: of these in a tuple, drawn at random", ge=1)


class ManifoldMiningSettings(MethodTable):
    """Mining on Manifolds (Iscen et al. 2018): pairs on which diffusion and Euclidean distance disagree."""

    name: Literal["manifold-mining"] = setting(
        "manifold-mining", "near on the manifold but not in space: positives; the other way round: negatives"
    )
    nearest: int = setting(
        50, "how many count as near, in both ways; at most a tenth of the collection", ge=1
    )
    positives: int = setting(1, "hard positives in a tuple", ge=1)
    negatives: int = setting(2, "hard negatives in a tuple", ge=1)


class ArcfaceSettings(MethodTable):
    """ArcFace (Deng et al. 2019), supervised: classify instances with an angular margin."""

    own_loss: ClassVar[bool] = True
    supervised: ClassVar[bool] = True
    name: Literal["arcface"] = setting("arcface", "WITH LABELS: classify instances with an angular margin")
    margin: float = setting(28.6, "in degrees", ge=0)
    scale: float = setting(64.0, "inverse temperature of the softmax over instances", gt=0)
    sub_centers: int = setting(1, "centres of an instance (sub-centre ArcFace)", ge=1)
    images_per_tuple: int = setting(4, "images of one instance in a tuple", ge=1)


class GemApSettings(MethodTable):
    """Listwise average precision (Revaud et al. 2019), supervised."""

    own_loss: ClassVar[bool] = True
    supervised: ClassVar[bool] = True
    name: Literal["gem-ap"] = setting(
        "gem-ap", "WITH LABELS: raise the average precision of every image of the batch"
    )
    bins: int = setting(20, "of the histogram of similarities from 1 down to 0", ge=2)
    images_per_tuple: int = setting(4, "images of one instance in a tuple", ge=2)


class OracleSettings(MethodTable):
    """Our own method with labels in place of mining: the most that mining could give."""

    supervised: ClassVar[bool] = True
    name: Literal["oracle"] = setting("oracle", "WITH LABELS: what mining would find if it were never wrong")
    neighbours: int = setting(3, "N_b: images of the anchor's instance in a tuple", ge=1)
