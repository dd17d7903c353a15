"""Time of linear attention and SSMs: causal convolutions, the gated delta rule, updates of the state.

    convolution    launch + rows one after the other + ‖ blocks of an SM, memory ‖
    state update   launch + tokens one after the other + memory
    chunked rule   launch + rows one after the other + ‖ chains of chunks + other work of chunks, memory ‖
    memory         bytes · ( share from DRAM / bandwidth + rest / what SMs move into and out of L2 )

* The convolution over a prompt is cut into blocks. Triton's (vLLM, SGLang) compute eight tokens of 256 channels, token
  after token; CUDA's (TensorRT-LLM) a channel of one request, 1024 tokens at a time.
* A state update reads and writes a matrix per request and value head, which is nearly all that it does. Several tokens
  (drafts that are verified) write a state each, so that a rejected one can be undone.
* The chunked rule computes a prompt in chunks of 64 tokens: matrix products within each, and a chain over all of them
  that hands on the state. A block walks along the chain of a request's head, a step per chunk, and an SM holds a few
  (`resident`): whole waves of them follow each other. FlashInfer's kernel does nothing else. That of
  flash-linear-attention (Triton) takes seven launches, of which one is the chain; the others write what every chunk
  needs, and read it again (`moved_factor`). Within a chunk it inverts a triangular matrix, row by row.
* L2: what is used in turn stays there up to its capacity (:mod:`gpuledger.models.time_model.l2`). Of the bytes that are
  moved, `live_factor` counts towards it: those of a state that is updated in place are moved twice. Behind a chain of
  launches, each with other bytes between two uses, the share of misses grows with the square of their number.

Chosen by held-back errors of an H100, an H200, a B200 and an L40S. An RTX PRO 6000 took no part and confirms it: 7.2 %
in the mean of 24 kernels, as 6.5 % of all others (a look-up of the four nearest shapes: 25 and 22 %).

‖ ‖ is the 4-norm, as in :mod:`gpuledger.models.time_model.gemms.law`.

Sources: S. Yang et al., Gated Delta Networks, ICLR 2025 (chunked form); S. Yang, Y. Zhang, flash-linear-attention (its
kernels); ``causal_conv1d.py`` of vLLM and SGLang, T. Dao's ``causal-conv1d`` (blocks of convolutions).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuledger.models.time_model.constants.fit_law import with_own
from gpuledger.models.time_model.l2 import l2_of
from gpuledger.models.time_model.overlap import norm
from gpuledger.readers.gpus import Gpu

#: Tokens of a chunk.
CHUNK = 64
#: How a convolution is cut into blocks: tokens by channels, or whole channels of requests.
PATTERNS = ("tokens", "channels")
_TOKENS, _CHANNELS, _ROUND = 8, 256, 1024
#: Bytes of activations, and of a state that the chunked rule reads or writes.
_VALUE, _STATE = 2, 4


@dataclass(frozen=True)
class ConvolutionConstants:
    """Constants of one causal convolution on one GPU."""

    launch_s: float  # least time (s) of its launches
    dram_share: float  # share of the data sheet's DRAM bandwidth
    stream_bytes_per_clock: float  # bytes that an SM moves into and out of L2 in a cycle
    live_factor: float  # of the bytes that are moved, those that must stay in L2 to be found there
    step_s: float  # what a token, or a round of a channel, takes in a block (s)
    block_s: float  # what a block keeps an SM busy (s)
    pattern: str = "tokens"  # how it is cut into blocks, one of `PATTERNS`
    source: str = field(default="", compare=False)  # what they were fitted to


@dataclass(frozen=True)
class UpdateConstants:
    """Constants of one kernel that updates states on one GPU; those of `ConvolutionConstants` but for blocks."""

    #: As there.
    launch_s: float
    dram_share: float
    stream_bytes_per_clock: float
    live_factor: float
    step_s: float = 0.0  # what a token of a request takes (s)
    source: str = field(default="", compare=False)  # what they were fitted to


@dataclass(frozen=True)
class ChunkedConstants:
    """Constants of one chunked rule on one GPU."""

    #: As in `ConvolutionConstants`.
    launch_s: float
    dram_share: float
    stream_bytes_per_clock: float
    live_factor: float
    row_s: float  # what a token of a chunk takes where rows wait for each other (s)
    #: What a block of the chain takes to begin and end, and for a chunk (s).
    block_s: float
    step_s: float
    chunk_s: float  # what the rest of a head's chunk keeps an SM busy (s)
    moved_factor: float  # bytes moved, of queries, keys, values and results, relative to moving each once
    resident: int = 1  # blocks of the chain that an SM computes at a time
    source: str = field(default="", compare=False)  # what they were fitted to


#: Where fits start, and the bounds within which a constant has its meaning.
CONVOLUTION_START = ConvolutionConstants(2e-6, 0.8, 20.0, 0.7, 1e-7, 1e-8)
UPDATE_START = UpdateConstants(4e-6, 0.8, 20.0, 0.7)
CHUNKED_START = ChunkedConstants(1e-5, 0.8, 20.0, 0.5, 1e-7, 3e-6, 1e-6, 1e-5, 4.0)
_MEMORY = {"launch_s": (5e-7, 1e-3), "dram_share": (0.05, 1.0), "stream_bytes_per_clock": (1.0, 200.0)}
CONVOLUTION_RANGES = _MEMORY | {"live_factor": (0.1, 2.0), "step_s": (1e-10, 1e-5), "block_s": (1e-10, 1e-4)}
UPDATE_RANGES = _MEMORY | {"live_factor": (0.1, 2.0)}
CHUNKED_RANGES = _MEMORY | {
    "live_factor": (0.01, 1.0),
    "row_s": (1e-10, 1e-5),
    "block_s": (1e-8, 1e-3),
    "step_s": (1e-9, 1e-4),
    "chunk_s": (1e-8, 1e-2),
    "moved_factor": (0.1, 50.0),
}
#: Where the time of a further token starts in kernels that were measured with several, and its bounds.
_STEP = {"step_s": (5e-7, 1e-10, 1e-4)}


def started(constants: UpdateConstants, tokens: np.ndarray) -> tuple[UpdateConstants, dict[str, tuple[float, float]]]:
    """Return where the fit of a state update starts, and the bounds of the constants that its shapes tell of."""
    return with_own(constants, UPDATE_RANGES, {} if (tokens == 1).all() else _STEP)


def _memory_s(
    gpu: Gpu,
    constants: ConvolutionConstants | UpdateConstants | ChunkedConstants,
    moved: np.ndarray,
    launches: bool = False,
    layers: np.ndarray | float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return how long bytes from DRAM and from L2 take.

    They are moved by one launch or by a chain of *launches*, and again after those of so many *layers*.
    """
    c, l2 = constants, l2_of(gpu)
    cold = (l2._replace(doublings=1) if launches else l2).cold_share(c.live_factor * layers * moved)
    dram_s = moved * cold / (c.dram_share * gpu.dram_bytes_per_s)
    return dram_s, moved * (1 - cold) / (c.stream_bytes_per_clock * gpu.sms * gpu.clock_hz)


def convolution_terms(
    gpu: Gpu, constants: ConvolutionConstants, shapes: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Predict the time of a causal convolution, over a prompt or of a decode step.

    The result has ``time_s`` and the terms ``launch_s, compute_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens`` (new, of each), ``channels`` and ``span``, the tokens that a result depends on.
    """
    s, c = shapes, constants
    moved = convolution_bytes(s)
    if c.pattern == "tokens":
        blocks = s["requests"] * np.ceil(s["tokens"] / _TOKENS) * np.ceil(s["channels"] / _CHANNELS)
        steps = np.minimum(s["tokens"], _TOKENS)
    else:
        steps = np.ceil(s["tokens"] / _ROUND)
        blocks = s["requests"] * s["channels"] * steps
    dram_s, l2_s = _memory_s(gpu, c, moved)
    compute_s = blocks * c.block_s / gpu.sms
    launch_s = c.launch_s + c.step_s * steps
    time_s = launch_s + norm(compute_s, dram_s + l2_s)
    return {"time_s": time_s, "launch_s": launch_s, "compute_s": compute_s, "l2_s": l2_s, "dram_s": dram_s}


def convolution_bytes(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes that a convolution moves: values and results, what it keeps of each request, weights."""
    s = shapes
    rows = 2 * s["requests"] * (s["tokens"] + s["span"] - 1) + s["span"]
    return _VALUE * rows * s["channels"]


def update_terms(gpu: Gpu, constants: UpdateConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of updating states by one token or a few: ``time_s`` and the terms ``launch_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests``; ``tokens`` (new, of each); ``heads`` and ``key_heads``, of values and of queries and keys;
        ``key_dim, value_dim``; ``decays`` of a token; ``read_state_bytes, written_state_bytes`` of a value of the
        state; optional ``layers`` that follow each other, each with its own states.
    """
    dram_s, l2_s = _memory_s(gpu, constants, update_bytes(shapes), layers=shapes.get("layers", 1.0))
    launch_s = constants.launch_s + constants.step_s * shapes["tokens"]
    return {"time_s": launch_s + dram_s + l2_s, "launch_s": launch_s, "l2_s": l2_s, "dram_s": dram_s}


def update_bytes(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes that updates of states move: a state per request is read, and written after every token."""
    s = shapes
    states = s["requests"] * s["heads"] * s["key_dim"] * s["value_dim"]
    values = 2 * s["key_heads"] * s["key_dim"] + 2 * s["heads"] * s["value_dim"] + s["decays"]
    kept = states * (s["read_state_bytes"] + s["tokens"] * s["written_state_bytes"])
    return kept + _VALUE * s["requests"] * s["tokens"] * values


def chunked_terms(gpu: Gpu, constants: ChunkedConstants, shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Predict the time of the gated delta rule over whole prompts.

    The result has ``time_s`` and the terms ``launch_s, chain_s, compute_s, l2_s, dram_s``.

    Parameters
    ----------
    shapes : mapping of str to float arrays of shape (launches,)
        ``requests, tokens, heads, key_dim, value_dim`` as for :func:`update_terms`.
    """
    s, c = shapes, constants
    chains, chunks = s["requests"] * s["heads"], np.ceil(s["tokens"] / CHUNK)
    chain_s = np.ceil(chains / (gpu.sms * c.resident)) * (c.block_s + chunks * c.step_s)
    compute_s = chains * chunks * c.chunk_s / gpu.sms
    states = chains * s["key_dim"] * s["value_dim"] * 2 * _STATE
    dram_s, l2_s = _memory_s(gpu, c, states + c.moved_factor * chunked_bytes(s), launches=True)
    launch_s = c.launch_s + c.row_s * np.minimum(s["tokens"], CHUNK)
    time_s = launch_s + norm(chain_s + compute_s, dram_s + l2_s)
    terms = {"launch_s": launch_s, "chain_s": chain_s, "compute_s": compute_s, "l2_s": l2_s, "dram_s": dram_s}
    return {"time_s": time_s, **terms}


def chunked_bytes(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the bytes of queries, keys, values and results of every value head."""
    s = shapes
    return 2 * _VALUE * s["requests"] * s["tokens"] * s["heads"] * (s["key_dim"] + s["value_dim"])


def chunked_flop(shapes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the FLOP of the gated delta rule in chunks: the state's products, and those within a chunk."""
    s = shapes
    inner = CHUNK * (3 * s["key_dim"] + 2 * s["value_dim"])
    return 2 * s["requests"] * s["tokens"] * s["heads"] * (3 * s["key_dim"] * s["value_dim"] + inner)
