"""A training run: a model, its batch, and how its state is spread over GPUs."""

from dataclasses import dataclass
from functools import cached_property

from gpuledger.errors import InputError
from gpuledger.models.transformer.blocks.standard import Attention, FeedForward
from gpuledger.models.transformer.model import Layers, Model
from gpuledger.models.transformer.workloads import MAX_TOKENS
from gpuledger.readers.gpus import Gpu

#: Formats of the products of layers, and formats in which parameters are gathered.
PRECISIONS, GATHERED = ("bf16", "fp8"), ("bf16", "fp32")
#: Whose norms, rotation, activation and loss: one kernel each, as written by hand or compiled; or the operators of
#: Hugging Face's ``transformers`` without a compiler.
IMPLEMENTATIONS = ("fused", "transformers")
#: Most GPUs of a node.
NODE = 8
#: Bytes of an activation and of a gradient on its way to the others.
VALUE = 2
#: Values of a parameter's state: itself, its gradient and the two moments of Adam.
STATE_VALUES = 4


@dataclass(frozen=True)
class TrainingRun:
    """One step of training, on every GPU the same."""

    model: Model  # a dense transformer with full attention
    gpu: Gpu
    sequence: int  # tokens of a sequence
    micro_batch: int  # sequences of a pass on each GPU
    accumulation: int = 1  # passes of a step
    #: Each has the same share of parameters, gradients and optimiser state (fully sharded data parallelism).
    gpus: int = NODE
    recompute: bool = False  # layers keep only their input for the backward pass and compute the rest again
    precision: str = "bf16"  # one of `PRECISIONS`: of the products of layers; attention and the LM head are in bf16
    #: One of `GATHERED`. ``fp32``: parameters travel in 32 bits and are rounded to bf16 before each product, and the
    #: residual stream is in 32 bits, as under autocast. ``bf16``: all of these are in bf16.
    gathered: str = "bf16"
    network_bytes_per_s: float = 0.0  # bandwidth between nodes of a node, per direction
    #: One of `IMPLEMENTATIONS`. The state is in 32 bits; only of ``transformers`` on one GPU, where nothing is
    #: gathered, is all of it in the format `gathered`, because PyTorch's optimizers keep moments as the parameters.
    implementation: str = "fused"

    def __post_init__(self):
        name = self.model.name
        for group in self.model.layers:
            plain = isinstance(group.attention, Attention) and group.attention.indexer is None
            plain = plain and not (group.attention.clipped or group.idle or group.cycle)
            if not (plain and isinstance(group.ffn, FeedForward)) or group.residuals or group.per_layer:
                problem = "training is modelled for attention and feed-forward layers only, each passed once"
                remedy = "use a dense model without experts, latent or linear attention, or layers for images"
                raise InputError(name, "", problem, remedy)
        if not self.gpu.flops.get(self.precision):
            problem = f"it has no peak of {self.precision}; it has {', '.join(self.gpu.precisions)}"
            raise InputError(self.gpu.file, f"GPU {self.gpu.name}", problem, "use another")
        if self.eager and self.precision != "bf16":
            problem = f"transformers has no products in {self.precision} of its own"
            raise InputError(name, "implementation", problem, "use bf16, or the fused implementation")
        if self.tokens > MAX_TOKENS:
            raise InputError(name, "micro_batch", f"{self.tokens:,} tokens in a pass", f"use at most {MAX_TOKENS:,}")
        if self.gpus > NODE and not self.network_bytes_per_s > 0:
            problem = f"{self.gpus} GPUs are more than one node of {NODE}, and the network between nodes is not given"
            remedy = "give the bandwidth of a node: --network, or network_gbit_per_s in a table"
            raise InputError(name, "network", problem, remedy)
        if self.gpus > NODE and self.gpus % NODE:
            raise InputError(
                name, "gpus", f"{self.gpus} GPUs are no whole nodes of {NODE}", f"use a multiple of {NODE}"
            )

    @property
    def tokens(self) -> int:
        """Tokens of a pass on each GPU."""
        return self.sequence * self.micro_batch

    @property
    def step_tokens(self) -> int:
        """Tokens of a step on each GPU."""
        return self.tokens * self.accumulation

    @property
    def eager(self) -> bool:
        """Whether operators run one by one, as `transformers` calls them."""
        return self.implementation == "transformers"

    @property
    def wide(self) -> bool:
        """Whether parameters are gathered, and the residual stream is kept, in 32 bits."""
        return self.gathered == "fp32"

    @property
    def gathered_bytes(self) -> int:
        """Bytes of a gathered parameter."""
        return 4 if self.wide else VALUE

    @property
    def stream_bytes(self) -> int:
        """Bytes of a value of the residual stream."""
        return 4 if self.wide else VALUE

    @property
    def state_value_bytes(self) -> int:
        """Bytes of a parameter as its GPU keeps it, of its gradient and of each of the moments."""
        return self.gathered_bytes if self.eager and self.gpus == 1 else 4

    def layer_parameters(self, group: Layers) -> int:
        """Return the parameters of one layer."""
        return self.model.vectors(group) + sum(linear.parameters for linear in group.linears(self.model.hidden))

    @cached_property
    def outer_parameters(self) -> int:
        """Parameters outside layers: embeddings, LM head, last norm."""
        return self.model.parameters - sum(group.count * self.layer_parameters(group) for group in self.model.layers)
