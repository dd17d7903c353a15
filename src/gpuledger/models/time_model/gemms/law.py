"""Time of a matrix multiplication from tiles, waves, the traffic of L2 and DRAM, and a few constants.

The time of m × k by k × n is the least over the tiles that its library may choose
(:mod:`gpuledger.models.time_model.gemms.dispatch`) and over all splits of k of

    launch + ‖ chain, DRAM ‖′ + split + conversion,    chain = ‖ compute, latency, L2 ‖ + drain + outside

where ‖ ‖ is the 4-norm: what overlaps takes as long as its longest part, a little longer where two are alike. In ‖ ‖′
the radicand has half of chain² DRAM² as well, close to the 3-norm: DRAM and the chain overlap less well (`crossed` of
the dispatch).

* compute: the waves of tiles, padding included, at the matrix units' reachable rate (`tensor_share`); where kernels
  keep all units busy for long, the clock drops (`throttled`). Before Hopper each tile begins late (`turnover`).
* latency: steps along k, each of which has to be fetched and waited for (`step_s`, longer where a tile stalls); tiles
  that an SM holds side by side hide each other's. Where an SM takes one tile after another of a dispatch table, the
  next one begins with nothing fetched (`_FILL`).
* L2: the rows and columns of tiles on their way into an SM (`l2_bytes_per_clock`), and the results on theirs out
  (`result_factor`); few blocks have the way out to themselves, unless the SMs themselves take so long (`direct`).
* DRAM: what L2 does not keep (`dram_share`, :mod:`gpuledger.models.time_model.l2`); a few SMs alone cannot have enough
  in flight to fill it (`flight` of a generation). What L2 does keep passes once at the rate of its slices (`stream`).
  Where weights come from DRAM, so do the first bytes, which all others wait for (`first_s`, part of the launch;
  :mod:`gpuledger.models.time_model.gemms.operand_traffic`). Few blocks begin sooner than many (there, too).
* passes: a kernel whose blocks work off tiles down the rows fetches the activations again for the next columns, where
  L2 does not keep them (:mod:`gpuledger.models.time_model.gemms.flashinfer_fp4`).
* drain: the results of the tiles that an SM holds at once; its next ones begin after them. Of TensorRT-LLM's nvfp4 on
  Blackwell Ultra they take longer to leave than to be written (`scattered` of the dispatch): those of the last tile
  are waited for, the others overlap with the chain.
* outside: Hopper's bulk copies of rows beyond the matrix, which tiles of a dispatch table and whole clusters may have,
  take longer than those within (`_OUTSIDE_OF`, `_OUTSIDE_BY`; DeepGEMM's authors call it the bound of L2 outside of
  tensors).
* split: adding partial sums (`split_s`), and their traffic; on data centre Blackwell, whose L2 lies on two dies, at a
  rate of its own. Part of `split_s` overlaps with DRAM (`_HIDDEN`).
* conversion: of the activations (:mod:`gpuledger.models.time_model.gemms.conversion`), and what else a kernel's
  dispatch says that it takes (:class:`gpuledger.models.time_model.gemms.dispatch.Candidates`).

Without a captured graph the host launches the next call while the GPU works: the time is then the longer of the
GPU's and the host's (`host_s`).

Besides the constants there are the numbers below and the tiles. They are structure: no GPU has its own (the step along
k and the tiles go by generation). On which tables they were chosen, always with the errors of the held-back halves in
sight, what was tried and gave little, and what the remaining errors are made of, stands in docs/MODELS.md.

Sources of the single terms: S. Williams et al., Roofline, CACM 52(4), 2009; H. Zhang et al., LLMCompass, ISCA 2024
(tiles and their schedule); NVIDIA, Matrix Multiplication Background User's Guide (tile and wave quantisation);
J. Little, Operations Research 9(3), 1961 (bytes in flight).
"""

from math import inf

import numpy as np
import pandas as pd

from gpuledger.models.time_model.constants.table import Constants
from gpuledger.models.time_model.gemms import cublas
from gpuledger.models.time_model.gemms.conversion import conversion_s
from gpuledger.models.time_model.gemms.dispatch import candidates
from gpuledger.models.time_model.gemms.operand_traffic import CROWD, LATER_S, traffic
from gpuledger.models.time_model.gemms.search import CloseTiles, Machine, fastest_tiles
from gpuledger.models.time_model.gemms.tiles import SPLITS, generation_of
from gpuledger.models.time_model.l2 import L2, l2_of
from gpuledger.readers.gpus import Gpu

#: Bytes of an operand's element and of a result's.
OPERAND_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp8_block": 1, "int8": 1, "fp4": 0.5}
RESULT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4}

#: What can bound the time of a GEMM.
BOUNDS = ("launch", "compute", "latency", "l2", "dram", "conversion", "host")

#: Precisions whose libraries do not split k (DeepGEMM; CUTLASS and cuBLASLt in 4 bits; CUTLASS in int8).
UNSPLIT = ("fp8_block", "fp4", "int8")

_TERMS = ("compute_s", "latency_s", "l2_s", "dram_s", "drain_s", "split_s")

# Structure: chosen once, by an A100's and an H100's shapes together, and the same for every GPU.
_FILL = 6.0  # steps that tiles after an SM's first take longer: nothing of theirs has been fetched
# Time of a row that a tile has beyond the matrix, over that of its bytes on their way into an SM, where it counts; and
# of dispatch tables where it is less.
_OUTSIDE_OF = {"hopper": 6.0}
_OUTSIDE_BY = {"sglang-deepgemm": 1.0}
# Share of `split_s` that overlaps with DRAM, but where `l2` is of a kernel for batches; and where partial sums move at
# a rate of their own.
_HIDDEN, _HIDDEN_PARTIAL = 0.4, 0.2
_OVERLAP = 8  # how sharply the longer of the host's and the GPU's time wins
_OVERLAPPED = 2 ** (1 / _OVERLAP)  # both together over one, where they are as long


def gemm_time_s(
    gpu: Gpu,
    constants: Constants,
    m: np.ndarray | int,
    n: np.ndarray | int,
    k: np.ndarray | int,
    batch: np.ndarray | int = 1,
    precision: str = "bf16",
    weights_in_turn: np.ndarray | int = 6,
    weight_bytes: np.ndarray | None = None,
    own_activations: bool = False,
) -> np.ndarray:
    """Predict the time of matrix multiplications, m × k by k × n.

    Each time is the least over all tiles of the GPU's generation and all splits of k, as a library with a good
    heuristic would choose; kernels with a dispatch table (``constants.dispatch``) take the tile that it names.

    Parameters
    ----------
    constants : Constants
        Of this GPU and precision.
    m, n, k : integer arrays
        Activations' rows (tokens), weights' rows (outputs), their common length; broadcast against each other.
    batch : integer array
        How many multiplications of that shape are in one kernel.
    precision : str
        One of `OPERAND_BYTES`.
    weights_in_turn : integer array
        Of how many equal weights, used in turn, these are one (the layers of a model; up to 6 in the measurements that
        the constants were fitted to): what the others leave of L2 decides whether the weights come from there.
    weight_bytes : array, optional
        Bytes of each multiplication's weights in DRAM and L2, all of its batch, where they are stored in fewer bits
        than they are multiplied in: they are widened on their way to the matrix units.
    own_activations : bool
        Whether each of the weights in turn has its own activations, too. Results go to the same place.

    Raises
    ------
    ValueError
        A size that is no whole number or below 1, an unknown precision, or one that the GPU has no peak for.
    """
    return _run(gpu, constants, m, n, k, batch, precision, weights_in_turn, weight_bytes, own_activations)[0]


class FittedTimes:
    """The times of the same matrix multiplications under constants that a fit tries.

    Takes the arguments of :func:`gemm_time_s` but for the constants.
    """

    def __init__(self, gpu: Gpu, *sizes: np.ndarray | int | str | bool | None):
        self.gpu, self.sizes = gpu, sizes
        self.close: CloseTiles | None = None

    def __call__(self, constants: Constants) -> np.ndarray:
        """Return the times (s), and remember which tiles came close to the fastest."""
        time, *_, self.close = _run(self.gpu, constants, *self.sizes, find_close=True)
        return time

    def near(self, constants: Constants) -> np.ndarray:
        """Return the times with one constant up to 2.1 % from what it was in the last call; takes a quarter as long."""
        return _run(self.gpu, constants, *self.sizes, among=self.close)[0]


def gemm_plan(gpu: Gpu, constants: Constants, *sizes: np.ndarray | int, **options) -> pd.DataFrame:
    """Predict how matrix multiplications run, and where their time goes.

    Takes the arguments of :func:`gemm_time_s` and raises its errors; `l2` may take the place of the GPU's.

    Returns
    -------
    DataFrame
        One row a multiplication, in the order of the flattened shapes: ``time_s``; ``tile_m``, ``tile_n``,
        ``split_k``; ``blocks``; ``waves`` (blocks of the busiest SM); ``bound`` (one of `BOUNDS`, the longest
        term, or ``host`` where its calls take longer than all of them) and the terms, which overlap but for the launch,
        ``drain_s`` and ``split_s``: ``launch_s``, ``compute_s``, ``latency_s``, ``l2_s``, ``dram_s``, ``drain_s``,
        ``split_s``, ``conversion_s``, ``host_s``; ``flop`` (useful), ``padded_flop`` (with the padding of tiles),
        ``l2_bytes`` (between L2 and SMs) and ``dram_bytes``.
    """
    run = _run(gpu, constants, *sizes, **options, plan=True)
    (rows, columns, depth, many), chosen, found = run[1], run[3], _terms(run)
    tile_m, tile_n, split, step, blocks = chosen.T
    plan = {"time_s": found.pop("time_s"), "tile_m": tile_m, "tile_n": tile_n, "split_k": split, "blocks": blocks}
    plan["waves"] = -(-blocks // gpu.sms)
    longest = np.column_stack([found[f"{name}_s"] for name in BOUNDS[:-1]]).argmax(axis=1)
    plan["bound"] = np.where(plan["time_s"] < _OVERLAPPED * found["host_s"], "host", np.array(BOUNDS)[longest])
    moved = {name: found.pop(name) for name in ("l2_bytes", "dram_bytes")}
    plan |= found
    plan["flop"] = 2.0 * rows * columns * depth * many
    plan["padded_flop"] = 2.0 * blocks * tile_m * tile_n * np.ceil(depth / (split * step)) * step
    return pd.DataFrame(plan | moved)


def gemm_terms(gpu: Gpu, constants: Constants, *sizes: np.ndarray | int, **options) -> dict[str, np.ndarray]:
    """Return the times and bytes of :func:`gemm_plan` alone, as arrays."""
    return _terms(_run(gpu, constants, *sizes, **options, plan=True))


def _terms(run: tuple) -> dict[str, np.ndarray]:
    time, _, launch, _, terms, cold, conversion, host, _ = run
    found = {"time_s": time.reshape(-1), "launch_s": launch, **dict(zip(_TERMS, terms.T[:6], strict=True))}
    return found | {"conversion_s": conversion, "host_s": host, "l2_bytes": terms[:, 6], "dram_bytes": cold}


def _run(
    gpu: Gpu,
    constants: Constants,
    m: np.ndarray | int,
    n: np.ndarray | int,
    k: np.ndarray | int,
    batch: np.ndarray | int = 1,
    precision: str = "bf16",
    weights_in_turn: np.ndarray | int = 6,
    weight_bytes: np.ndarray | None = None,
    own_activations: bool = False,
    plan: bool = False,
    l2: L2 | None = None,
    among: CloseTiles | None = None,
    find_close: bool = False,
):
    if precision not in OPERAND_BYTES:
        raise ValueError(f"unknown precision '{precision}'; one of {', '.join(OPERAND_BYTES)}")
    if np.any(np.asarray(weights_in_turn) < 1):
        raise ValueError("weights_in_turn must be at least 1")
    arrays = np.broadcast_arrays(*(np.asarray(size) for size in (m, n, k, batch)))
    if any(array.dtype.kind not in "iu" for array in arrays) or any((array < 1).any() for array in arrays):
        raise ValueError("m, n, k and batch must be whole numbers of at least 1")
    flat = [np.ascontiguousarray(array, dtype=np.int64).reshape(-1) for array in arrays]
    machine = _machine(gpu, constants, precision)

    def for_each_shape(values) -> np.ndarray:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=float), arrays[0].shape)).reshape(-1)

    in_turn = for_each_shape(weights_in_turn)
    weights = machine.operand * flat[1] * flat[2] * flat[3] if weight_bytes is None else for_each_shape(weight_bytes)
    # Rules that count blocks count those of a whole batch, as DeepGEMM does of its groups.
    single = (flat[3] == 1) & (l2 is None)
    found = candidates(gpu, constants.dispatch, flat[0], flat[1] * flat[3], flat[2], machine.operand, single)
    tiles, first, last, persistent = found.tiles, found.first, found.last, found.persistent
    machine = machine._replace(
        least_rows=max(machine.least_rows, tiles[:, 0].min()),
        direct=found.direct,
        ring=found.ring,
        partial=found.partial if l2 is None else 0.0,
        hidden=0.0 if l2 else _HIDDEN_PARTIAL if found.partial else _HIDDEN,
        later=LATER_S if found.sooner and l2 is None else 0.0,
        turnover=0.0 if l2 else machine.turnover,
        crowd=CROWD * gpu.sms,
        crossed=found.crossed,
        short=found.short,
        **found.whole._asdict(),
    )
    flights = np.full(len(flat[0]), generation_of(gpu).flight)
    if persistent:
        machine, flights = machine._replace(fill=0.0), persistent.flight
    if constants.dispatch == cublas.NAME:
        machine = machine._replace(fill=0.0)
    splits = np.array(SPLITS[:1] if precision in UNSPLIT else SPLITS, dtype=float)
    count = len(flat[0])
    sizes = [array.astype(float) for array in flat]
    kept = l2 or l2_of(gpu)
    streamed = l2 or kept._replace(bytes_per_s=generation_of(gpu).stream * kept.bytes_per_s)
    cold, held, warm, wait = traffic(
        machine, streamed, sizes, weights, in_turn, own_activations, found.passes, found.written
    )
    stored = np.minimum(machine.operand, weights / (sizes[1] * sizes[2] * sizes[3]))
    counted = [*sizes[:2], np.maximum(sizes[2], found.least_k), sizes[3]]
    shapes = (*counted, stored, held, warm, flights, found.scattered * np.ones(count), first, last)
    time, chosen, terms, close = fastest_tiles(shapes, tiles, splits, machine, plan, among, find_close)
    conversion = conversion_s(machine, kept, flat, weights, in_turn if own_activations else 1.0, found)
    conversion += found.launches * machine.launch + found.held_up / machine.clock
    # `launch_s` is that of many blocks.
    time += conversion + wait - machine.later * single
    wait -= machine.later * np.maximum(0.0, 1.0 - chosen[:, 4] / machine.crowd) * single
    host = machine.host * (1 + found.calls) * np.ones(count)
    if machine.host > 0:
        time = host * (1 + (time / host) ** _OVERLAP) ** (1 / _OVERLAP)
    return time.reshape(arrays[0].shape), flat, machine.launch + wait, chosen, terms, cold, conversion, host, close


def _machine(gpu: Gpu, constants: Constants, precision: str) -> Machine:
    generation = generation_of(gpu)
    peak = gpu.peak_flop_per_s("fp8" if precision == "fp8_block" else precision)
    return Machine(
        launch=constants.launch_s,
        dram=constants.dram_share * gpu.dram_bytes_per_s,
        flop_per_sm=constants.tensor_share * peak / gpu.sms,
        l2_per_sm=constants.l2_bytes_per_clock * gpu.clock_hz,
        clock=gpu.clock_hz,
        step=constants.step_s,
        sms=float(gpu.sms),
        operand=float(OPERAND_BYTES[precision]),
        result=float(RESULT_BYTES.get(precision, 2)),
        least_rows=float(min(generation.rows)),
        throttled=float(constants.throttled),
        conversion=float(constants.conversion_bytes),
        conversion_row=float(constants.conversion_row_s),
        split=float(constants.split_s),
        result_factor=float(constants.result_factor),
        host=float(constants.host_s),
        first=float(constants.first_s),
        outside=min(_OUTSIDE_BY.get(constants.dispatch, inf), _OUTSIDE_OF.get(gpu.architecture, 0.0)),
        fill=_FILL,
        turnover=generation.turnover,
    )
