"""How a model is shared out among devices, and what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuledger.errors import InputError
from gpuledger.models.transformer.model import Experts, LatentAttention, Linear, Model

MAX_DEVICES = 2**16


@dataclass(frozen=True)
class Parallel:
    """Devices that share a model.

    Attributes
    ----------
    tensor : int
        Devices that share each matrix: heads, widths and the vocabulary are split evenly among them; heads of keys
        and values are replicated where there are fewer (compressed ones, MLA's, always). Two all-reduces a layer.
    pipeline : int
        Stages, each with a run of consecutive layers; the first ones have one more where it does not come out even.
        A stage sends whole activations to the next.
    expert : int
        Devices among which routed experts are dealt out, expert e to device e mod *expert*. 1: each device has a
        share of every expert's width (tensor parallel). Up to *tensor* (of which it is a divisor): within the tensor
        group, whose all-reduce brings the results together. Beyond (a multiple of *tensor*): there are
        expert / tensor replicas of the rest of the model; the workload is that of *each* replica, and tokens go to
        their experts and back by all-to-all.

    Raises
    ------
    InputError
        Not whole, or *expert* and *tensor* do not divide one another.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self):
        for name in ("tensor", "pipeline", "expert"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_DEVICES:
                raise InputError("parallel", name, f"{value!r} is no number of devices", f"give 1 … {MAX_DEVICES}")
        if self.tensor % self.expert and self.expert % self.tensor:
            problem = f"{self.expert} is neither a divisor nor a multiple of tensor {self.tensor}"
            raise InputError("parallel", "expert", problem, "choose one that is")

    @property
    def replicas(self) -> int:
        """Replicas of what is not an expert, each with the workload."""
        return max(1, self.expert // self.tensor)

    @property
    def expert_width_devices(self) -> int:
        """Devices that share the width of one expert."""
        return max(1, self.tensor // self.expert)

    @property
    def devices(self) -> int:
        return self.tensor * self.replicas * self.pipeline

    def stages(self, layers: int) -> list[range]:
        """Return the layers of each stage."""
        each, more = divmod(layers, self.pipeline)
        starts = [stage * each + min(stage, more) for stage in range(self.pipeline + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]

    def check(self, model: Model) -> None:
        """Raise an InputError if *model* cannot be shared out like this."""
        if self.pipeline > model.layer_count:
            problem = f"{self.pipeline} stages for {model.layer_count} layers"
            raise InputError(model.name, "parallel.pipeline", problem, "take at most as many stages as layers")
        for group in model.layers:
            attention, ffn = group.attention, group.ffn
            shared = [("query heads", attention.heads, self.tensor)]
            if not isinstance(attention, LatentAttention):
                few = attention.kv_heads < self.tensor
                shared.append(
                    ("devices over heads of keys and values", self.tensor, attention.kv_heads)
                    if few
                    else ("heads of keys and values", attention.kv_heads, self.tensor)
                )
            if isinstance(ffn, Experts):
                shared.append(("the width of an expert", ffn.expert.width, self.expert_width_devices))
                if ffn.shared:
                    shared.append(("the width of shared experts", ffn.shared.width, self.tensor))
                if self.expert > ffn.experts:
                    problem = f"{ffn.experts} experts for {self.expert} devices"
                    raise InputError(model.name, "parallel.expert", problem, "take at most as many devices as experts")
            else:
                shared.append(("the feed-forward width", ffn.width, self.tensor))
            for what, number, devices in shared:
                if number % devices:
                    problem = f"{what} ({number}) cannot be shared evenly ({devices})"
                    raise InputError(model.name, "parallel.tensor", problem, "take a divisor")


def share(linear: Linear, devices: int) -> tuple[int, int]:
    """Return outputs and inputs of the part of a matrix that one of *devices* has.

    Heads of keys and values are replicated where there are fewer than devices; an uneven vocabulary is padded.
    """
    if linear.split == "columns":
        units = max(linear.units // devices, 1) if linear.replicable else -(-linear.units // devices)
        return linear.outputs // linear.units * units, linear.inputs
    if linear.split == "rows":
        return linear.outputs, linear.inputs // devices
    return linear.outputs, linear.inputs


def ring_bytes(payload_bytes: np.ndarray, devices: int, passes: int = 1) -> np.ndarray:
    """Return the bytes that a device sends in a ring: passes · (p − 1)/p of the payload, rounded up.

    An all-gather of a payload is one pass, an all-reduce two (reduce-scatter and all-gather): 2(p − 1)/p. In an
    all-to-all (p − 1)/p of what a device holds goes to others.
    """
    return -(-passes * (devices - 1) * payload_bytes // devices)
