"""A vision tower: the encoder that turns an image's patches into tokens of the text model, and its parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuledger.models.transformer.blocks.image_sizes import ImageRule
from gpuledger.models.transformer.blocks.standard import FeedForward, Linear
from gpuledger.models.transformer.formats.precision import BITS, Precision

#: What the names of the tower's kernels begin with.
IMAGE = "image_"


@dataclass(frozen=True)
class Step:
    """One operation between the encoder's layers and the text model, on rows of one or several patches.

    ``proj`` multiplies a row of *inputs* values with a matrix, ``norm`` and ``act`` keep its values (a gated
    activation halves them), ``pool`` replaces rows by their mean.
    """

    what: str
    inputs: int  # values read of a row
    outputs: int  # values written
    patches: int  # that make a row of the output
    bias: bool = False
    weights: int = 0  # parameters of a norm
    split: str = ""  # how devices share the matrix, or the activation between two: by ``columns`` or ``rows``

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias) if self.what == "proj" else self.weights

    @property
    def linear(self) -> Linear:
        units = {"columns": self.outputs, "rows": self.inputs}.get(self.split, 1)
        return Linear("image_merger_proj", "image_merger_proj", self.outputs, self.inputs, self.bias, self.split, units)


@dataclass(frozen=True)
class VisionTower:
    """The vision encoder of a model and its projector."""

    image: ImageRule  # what becomes of an image
    #: Width of the residual stream, attention heads and their width. All heads have keys and values of their own.
    hidden: int
    heads: int
    head_dim: int
    layers: int  # of the checkpoint
    ffn: FeedForward
    patch_values: int  # values of a patch: channels × frames × pixels
    steps: tuple[Step, ...]  # from the encoder's output to the text model's input
    skipped: int = 0  # last layers that are not computed (LLaVA takes the output of the last but one)
    patch_bias: bool = False
    norm_values: int = 2  # parameters of a norm per value: 1 (RMSNorm), 2 (LayerNorm)
    norms: int = 2  # norms of a layer: 2, or 4 with further ones after each block (Gemma 4)
    qkv_bias: bool = True
    out_bias: bool = True
    qk_norm: int = 0  # parameters of the norms of queries and keys of a layer
    normed: int = 0  # vectors of a head that are normalised: of queries, keys and values; 0: none
    scales: int = 0  # parameters of a layer beside matrices and norms (InternViT's scales of both blocks)
    rotary: bool = False  # RoPE turns queries and keys
    class_token: bool = False  # a sequence has one more token than patches
    positions: int = 0  # rows of learned positions
    #: Patches along the side of the windows within which tokens attend, in all layers but `full_layers`; 0: none.
    window: int = 0
    full_layers: int = 0
    #: Norms before the first and after the last layer that are computed.
    pre_norm: bool = False
    post_norm: bool = False
    unused: int = 0  # parameters that are stored and not computed with
    #: Layers whose output is projected, too, and added to that of the text model's first layers (Qwen3-VL); their steps
    #: are in `steps`.
    taps: int = 0

    @property
    def computed(self) -> int:
        """Layers that are computed."""
        return self.layers - self.skipped

    def splits(self, devices: int) -> bool:
        """Whether so many devices can share each matrix; else every device computes the whole tower."""
        shared = [step.outputs for step in self.steps if step.split == "columns" and step.what == "proj"]
        return not any(width % devices for width in (self.heads, self.ffn.width, *shared))

    @property
    def patch_linear(self) -> Linear:
        return Linear("image_patch_proj", "image_patch_proj", self.hidden, self.patch_values, self.patch_bias)

    def layer_linears(self, devices: int = 1) -> Iterator[Linear]:
        """Yield the matrices of a layer, those of attention first, split as `devices` share them."""
        split = self.splits(devices)
        width = self.heads * self.head_dim
        for part in ("q_proj", "k_proj", "v_proj"):
            how = ("columns", self.heads) if split else ("", 1)
            yield Linear("image_qkv_proj", f"image_{part}", width, self.hidden, self.qkv_bias, *how)
        how = ("rows", self.heads) if split else ("", 1)
        yield Linear("image_out_proj", "image_out_proj", self.hidden, width, self.out_bias, *how)
        for linear in self.ffn.linears(self.hidden, IMAGE):
            yield linear if split else replace(linear, split="", units=1)

    @property
    def layer_vectors(self) -> int:
        """Parameters of a layer outside matrices."""
        return self.norms * self.norm_values * self.hidden + self.qk_norm + self.scales

    @property
    def vectors(self) -> int:
        """Parameters outside layers and matrices: norms, learned positions and those that are not computed with."""
        norms = (self.pre_norm + self.post_norm) * self.norm_values * self.hidden
        own = sum(step.parameters for step in self.steps if step.what != "proj")
        return norms + (self.positions + self.class_token) * self.hidden + own + self.unused

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint's tower and projector."""
        matrices = self.patch_linear.parameters + sum(step.parameters for step in self.steps if step.what == "proj")
        layer = sum(linear.parameters for linear in self.layer_linears()) + self.layer_vectors
        return matrices + self.layers * layer + self.vectors

    def weight_bytes(self, precision: Precision, devices: int = 1) -> int:
        """Return the bytes of the weights on each of *devices* that share the tower; they are not quantised."""
        layers = self.layers * sum(linear.parameters for linear in self.layer_linears())
        shared = layers // devices if self.splits(devices) else layers
        merger = sum(step.parameters for step in self.steps if step.split and step.what == "proj")
        shared += merger // devices if self.splits(devices) else merger
        return (self.parameters - layers - merger + shared) * BITS[precision.plain] // 8
