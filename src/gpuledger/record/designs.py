"""What ncu counts: the runs of the toy network and the points of the sweeps, and about how many launches that makes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

#: Launches of eager PyTorch per layer and beside the layers, by workload and direction: operators counted on a CPU,
#: rounded up. They only serve to plan the time of a recording.
_LAUNCHES = {
    ("gpt2", "forward"): (14, 6),
    ("gpt2", "backward"): (26, 10),
    ("llama", "forward"): (34, 6),
    ("llama", "backward"): (60, 20),
}


#: The network of the source notebook: 10 × [Linear(1024, 1024) without bias + Sigmoid] on 128 rows in fp32.
NETWORK = {"layers": 10, "hidden_dim": 1024, "tokens": 128, "activation": "sigmoid", "bias": False}
#: By run, each of which repeats the one before it, the launches that the source notebook shows on an A100. The whole
#: training step has 81: 11 random tensors; GEMM, split-K reduction and sigmoid of each layer; sum and its gradient;
#: for each layer the sigmoid's gradient and the weight's, for all but the first also the input's with its reduction.
NETWORK_LAUNCHES = {"setup": 11, "forward": 41, "forward_backward": 81}
#: Before the points that a workload has no time for, in a line of its output.
TIME_IS_UP = "time is up before: "


def in_time(points: Sequence[str], seconds: float) -> Iterator[str]:
    """Yield the first point, and others as long as the time (s) suffices for one that takes as long as the longest."""
    start = begun = time.monotonic()
    longest = 0.0
    for place, point in enumerate(points):
        if place and begun - start + longest > seconds:
            print(f"{TIME_IS_UP}{' '.join(points[place:])}", flush=True)
            return
        yield point
        ended = time.monotonic()
        begun, longest = ended, max(longest, ended - begun)


@dataclass(frozen=True)
class Counting:
    """A workload that ncu counts at several points in one process."""

    module: str  # of :mod:`gpuledger.record.workloads`
    options: tuple[str, ...]  # command-line options beside ``--point``
    #: By path of a CSV in the recording, its point: the value of ``--point`` and the name of the NVTX range.
    tables: Mapping[str, str]
    launches: int  # about how many launches are counted

    def command(self, python: str) -> list[str]:
        """Return the command line for a Python, without points."""
        return [python, "-m", f"gpuledger.record.workloads.{self.module}", *self.options]


#: Tokens that GPT-2's LM head tells apart.
GPT2_VOCABULARY = 50_257
#: The three runs of the toy network.
TOY_NETWORK = Counting(
    "toy_network",
    tuple(f"--{name.replace('_', '-')}={NETWORK[name]}" for name in ("layers", "hidden_dim", "tokens")),
    {f"flop_reconciliation/toy_network_{passes}.csv": passes for passes in NETWORK_LAUNCHES},
    sum(NETWORK_LAUNCHES.values()),
)


@dataclass(frozen=True)
class Point:
    """Sizes of a model."""

    n_layer: int
    hidden_dim: int
    seq_len: int

    @property
    def name(self) -> str:
        return f"n_layer-{self.n_layer}.hidden_dim-{self.hidden_dim}.seq_len-{self.seq_len}.csv"


@dataclass(frozen=True)
class SweepDesign:
    """Variation of one size at a time, with the others as in `base`."""

    workload: str  # module of :mod:`gpuledger.record.workloads`
    base: Point
    #: Values of each size; empty: not varied.
    n_layer: tuple[int, ...] = ()
    hidden_dim: tuple[int, ...] = ()
    seq_len: tuple[int, ...] = ()
    #: The one that is fixed while the hidden size varies; the other one is 0.
    n_head: int = 0
    head_dim: int = 0
    direction: str = "forward"  # {"forward", "backward"}: the pass that is counted

    def points(self) -> list[Point]:
        """Return every point once, the base first."""
        return list(dict.fromkeys([self.base, *self._varied()]))

    def sizes(self, point: Point) -> str:
        """Return a point as the workload takes it: layers, width, heads and tokens, as ``2x768x12x128``."""
        heads = self.n_head or point.hidden_dim // self.head_dim
        return f"{point.n_layer}x{point.hidden_dim}x{heads}x{point.seq_len}"

    def products(self, point: Point) -> list[tuple[int, int, int]]:
        """Return m, n, k of every product (m × k) · (k × n) of GPT-2's counted pass, in the order of their launches.

        Of each linear layer (n × k), the backward pass multiplies for the gradients of the input and of the weight; in
        PyTorch the other way round if the layer has no bias, as the LM head.
        """
        tokens, width = point.seq_len, point.hidden_dim
        layers = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * point.n_layer
        head = GPT2_VOCABULARY, width
        if self.direction == "forward":
            return [(tokens, n, k) for n, k in [*layers, head]]
        gradients = [[(tokens, k, n), (n, k, tokens)] for n, k in [*layers, head]]
        gradients[-1].reverse()
        return [product for both in reversed(gradients) for product in both]

    def counting(self, folder: str) -> Counting:
        """Return what ncu counts, with the tables in a folder of the recording."""
        points = self.points()
        per_layer, others = _LAUNCHES[self.workload, self.direction]
        launches = per_layer * sum(point.n_layer for point in points) + others * len(points)
        tables = {f"{folder}/{point.name}": self.sizes(point) for point in points}
        return Counting(self.workload, (f"--direction={self.direction}",), tables, launches)

    def _varied(self) -> Iterator[Point]:
        for variable in ("seq_len", "hidden_dim", "n_layer"):
            for value in getattr(self, variable):
                yield replace(self.base, **{variable: value})


_LENGTHS = (64, 128, 256, 512, 1024, 2048)
_FEW_LAYERS = (1, 2, 3)
_WIDTHS = (192, 384, 768, 1536, 3072, 6144)
#: The sweep of the notes on metric sweeps: GPT-2's 12 heads, which become wider with the model.
_GPT2 = SweepDesign("gpt2", Point(2, 768, 128), (1, 2, 4, 8, 12), _WIDTHS, _LENGTHS, n_head=12)
_LLAMA = SweepDesign("llama", Point(1, 2048, 128), _FEW_LAYERS, (512, 1024, 2048, 3072, 4096), _LENGTHS, head_dim=128)
#: By case. In `gpt2_head_dim_64`, as in published families of models, wider models have more heads. Backward passes
#: have twice the launches of forward passes, and Llama twice those of GPT-2: hence few layers, enough to see whether
#: values per launch depend on them, too few for a law.
SWEEPS = {
    "gpt2": _GPT2,
    "gpt2_head_dim_64": SweepDesign("gpt2", _GPT2.base, hidden_dim=_WIDTHS, head_dim=64),
    "gpt2_backward": SweepDesign(
        "gpt2", Point(1, 768, 128), _FEW_LAYERS, _WIDTHS[:-1], _LENGTHS, n_head=12, direction="backward"
    ),
    "llama": _LLAMA,
    "llama_backward": replace(_LLAMA, n_layer=(1, 2), hidden_dim=(), seq_len=_LENGTHS[:-1], direction="backward"),
}
