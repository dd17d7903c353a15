"""How a model is split across devices, and how much they exchange."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.latent import CompressedAttention
from gpuledger.models.transformer.blocks.recurrent import DeltaAttention, SelectiveScan, ShortConvolution, StateSpace
from gpuledger.models.transformer.blocks.shared import SharedBlock
from gpuledger.models.transformer.blocks.standard import Attention, Experts, FeedForward, Linear, Nothing
from gpuledger.models.transformer.model import Model

MAX_DEVICES = 2**16


@dataclass(frozen=True)
class Parallel:
    """Degrees of tensor, pipeline, expert and data parallelism.

    Raises
    ------
    InputError
        A degree is not a whole number, neither of *expert* and *tensor* divides the other, or *expert* is no divisor of
        tensor · replicas.
    """

    #: Devices that share each matrix. Heads, widths and the vocabulary are split evenly; key/value heads are replicated
    #: if there are fewer of them than devices (MLA's compressed ones always). Two all-reduces per layer.
    tensor: int = 1
    #: Stages of consecutive layers; if the layers do not divide evenly, the first stages have one more. A stage sends
    #: complete activations to the next one.
    pipeline: int = 1
    #: Devices across which routed experts are distributed, expert e on device e mod *expert*. 1: every device holds a
    #: slice of every expert (tensor parallelism). A divisor of *tensor*: experts are distributed within the tensor
    #: group, whose all-reduce combines the results. A multiple of *tensor*: the rest of the model is replicated expert
    #: / tensor times, *each* replica processes the workload, and tokens travel to their experts and back by all-to-all.
    expert: int = 1
    #: Replicas of the layers outside experts, each of which processes the workload (data parallelism). 0: as many as
    #: *expert* takes. With fewer experts' devices than all, tensor · replicas, these share each expert's width, as in
    #: vLLM without expert parallelism (its page "Data Parallel Deployment"): an all-gather brings every replica's
    #: tokens to all, a reduce-scatter leaves each its own sums (``AgRsAll2AllManager`` in ``all2all.py``), and the
    #: tensor group's all-reduce completes them. Routing weights, 8 bytes a choice, are not counted in messages.
    replicas: int = 0

    def __post_init__(self):
        if self.replicas == 0 and type(self.replicas) is int and {type(self.tensor), type(self.expert)} == {int}:
            object.__setattr__(self, "replicas", max(1, self.expert // max(self.tensor, 1)))
        for name in ("tensor", "pipeline", "expert", "replicas"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= MAX_DEVICES:
                raise InputError("parallel", name, f"{value!r} is not a number of devices", f"give 1 … {MAX_DEVICES}")
        if self.tensor % self.expert and self.expert % self.tensor:
            problem = f"{self.expert} is neither a divisor nor a multiple of tensor {self.tensor}"
            raise InputError("parallel", "expert", problem, "choose one that is")
        if self.group % self.expert:
            problem = f"{self.expert} is no divisor of tensor {self.tensor} × replicas {self.replicas}"
            raise InputError("parallel", "expert", problem, "choose one that is")

    @property
    def label(self) -> str:
        """What this is called for short: TP of the attention, its replicas (DP), EP of the experts, PP."""
        degrees = {"TP": self.tensor, "DP": self.replicas, "EP": self.expert, "PP": self.pipeline}
        return " ".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1 or name == "TP")

    @property
    def group(self) -> int:
        """Devices that hold the experts of one stage."""
        return self.tensor * self.replicas

    @property
    def expert_width_devices(self) -> int:
        """Devices that share one expert."""
        return self.group // self.expert

    @property
    def exchanges(self) -> bool:
        """Whether tokens travel between replicas to the devices that hold whole experts."""
        return self.replicas > 1 and self.expert_width_devices == 1

    @property
    def gathers(self) -> bool:
        """Whether all replicas' tokens come to every device, which holds slices of experts."""
        return self.replicas > 1 and self.expert_width_devices > 1

    @property
    def devices(self) -> int:
        return self.group * self.pipeline

    def stages(self, layers: int) -> list[range]:
        """Return the layers of each stage."""
        each, more = divmod(layers, self.pipeline)
        starts = [stage * each + min(stage, more) for stage in range(self.pipeline + 1)]
        return [range(start, stop) for start, stop in pairwise(starts)]

    def check(self, model: Model) -> None:
        """Raise an InputError if *model* cannot be split like this."""
        if self.pipeline > model.layer_count:
            problem = f"{self.pipeline} stages for {model.layer_count} layers"
            raise InputError(model.name, "parallel.pipeline", problem, "use at most as many stages as layers")
        if self.pipeline > 1 and model.cycles > 1:
            problem = "a token passes layers several times"
            raise InputError(model.name, "parallel.pipeline", problem, "use one stage")
        shortcut = any(isinstance(group.ffn, Experts) and group.ffn.shortcut for group in model.layers)
        if shortcut and any(len(stage) % 2 for stage in self.stages(model.layer_count)):
            problem = f"a stage of {self.pipeline} would end between two layers that belong together"
            raise InputError(model.name, "parallel.pipeline", problem, "use a divisor of half of the layers")
        if self.replicas > self.expert and not any(isinstance(group.ffn, Experts) for group in model.layers):
            problem = "replicas of a model without experts share nothing"
            raise InputError(model.name, "parallel.replicas", problem, "leave it out: each is a server of its own")
        for group in model.layers:
            ffn = group.ffn
            shared = []
            for attention in group.attention.parts:
                if self.pipeline > 1 and isinstance(attention, SharedBlock):
                    problem = "layers of several stages share a block"
                    raise InputError(model.name, "parallel.pipeline", problem, "use one stage")
                if not isinstance(attention, Nothing):
                    named = {StateSpace: "heads of the state space", ShortConvolution: "channels of the convolution"}
                    named[SelectiveScan] = "channels of the scan"
                    shared.append((named.get(type(attention), "query heads"), attention.heads, self.tensor))
                if isinstance(attention, CompressedAttention):
                    shared.append(("groups of heads", attention.out_groups, self.tensor))
                if isinstance(attention, StateSpace):
                    groups = sorted((attention.groups, self.tensor), reverse=True)
                    shared.append(("its groups", *groups))
                if isinstance(attention, DeltaAttention):
                    shared.append(("value heads", attention.value_heads, self.tensor))
                if isinstance(attention, Attention):
                    if self.tensor > attention.kv_heads and self.tensor % attention.kv_heads:
                        # Each head would be on as many devices as the others.
                        problem = f"{attention.kv_heads} key/value heads for {self.tensor} devices"
                        remedy = "use a divisor of the heads, or a multiple of them"
                        raise InputError(model.name, "parallel.tensor", problem, remedy)
                    shared.append(("key/value heads", attention.kv_heads, min(self.tensor, attention.kv_heads)))
            if isinstance(ffn, Experts):
                shared.append(("the width of an expert", ffn.expert.width, self.expert_width_devices))
                if ffn.shared:
                    shared.append(("the width of shared experts", ffn.shared.width, self.tensor))
                if self.expert > ffn.experts:
                    problem = f"{ffn.experts} experts for {self.expert} devices"
                    raise InputError(model.name, "parallel.expert", problem, "use at most as many devices as experts")
            elif isinstance(ffn, FeedForward):
                shared.append(("the feed-forward width", ffn.width, self.tensor))
            for what, number, devices in shared:
                if number % devices:
                    problem = f"{what} ({number}) cannot be split evenly over {devices}"
                    raise InputError(model.name, "parallel.tensor", problem, "use a divisor")


def share(linear: Linear, devices: int) -> tuple[int, int]:
    """Return outputs and inputs of one device's share of a matrix.

    Key/value heads are replicated if there are fewer of them than devices; an uneven vocabulary is padded.
    """
    if linear.split == "columns":
        units = max(linear.units // devices, 1) if linear.replicable else -(-linear.units // devices)
        return linear.outputs // linear.units * units, linear.inputs
    if linear.split == "rows":
        return linear.outputs, linear.inputs // devices
    return linear.outputs, linear.inputs


def ring_bytes(payload_bytes: np.ndarray, devices: int, passes: int = 1) -> np.ndarray:
    """Return the bytes that each of p devices sends in a ring: passes · (p − 1)/p of the payload, rounded up.

    An all-gather takes one pass, an all-reduce two (reduce-scatter and all-gather). In an all-to-all, (p − 1)/p of a
    device's data goes to other devices.
    """
    return -(-passes * (devices - 1) * payload_bytes // devices)
