"""Kernels of feed-forward blocks: dense and mixture of experts."""

import numpy as np

from gpuledger.models.transformer.blocks.standard import Experts, FeedForward, Linear
from gpuledger.models.transformer.launches.rows import KernelList
from gpuledger.models.transformer.model import Layers
from gpuledger.models.transformer.parallel import ring_bytes
from gpuledger.models.transformer.routing import Load, Routing


def add_feed_forward(rows: KernelList, group: Layers, load: Load) -> None:
    """Add the kernels between the norm before the feed-forward block and the residual add."""
    if isinstance(group.ffn, Experts):
        _experts(rows, group.ffn, load)
    else:
        add_dense(rows, group.ffn, "")


def first_kernel(ffn: FeedForward | Experts) -> str:
    """Return the GEMM that reads the output of the norm before the block."""
    block, prefix = (ffn.expert, "expert_") if isinstance(ffn, Experts) else (ffn, "")
    return prefix + ("gate_up_proj" if block.gated else "up_proj")


def add_dense(rows: KernelList, block: FeedForward, prefix: str) -> None:
    """Add a feed-forward block without experts, whose kernels have *prefix* before their names."""
    tokens = rows.work.tokens
    *up, down = block.linears(rows.model.hidden, prefix)
    rows.gemms(up, tokens, "gate_up" in rows.fused or block.stored_fused)
    width = block.width // rows.parallel.tensor
    if block.sparse:  # the mean and the deviation of a token's gates
        rows.per_token("ffn_cutoff", width, width, 2)
    _activation(rows, block, prefix, tokens, width)
    if block.norm:
        rows.norm("ffn_inner_norm", width, down.kernel)
    rows.gemms([down], tokens)


def _activation(rows: KernelList, block: FeedForward, prefix: str, m: np.ndarray, width: int) -> None:
    read = m * (width * rows.value_bytes * (2 if block.gated else 1))
    write = m * (width * rows.operand_bytes(prefix + "down_proj"))
    rows.elementwise(prefix + "act" if prefix else "ffn_act", m, width, read, write)


def _experts(rows: KernelList, ffn: Experts, load: Load) -> None:
    hidden, tokens, value, parallel = rows.model.hidden, rows.work.tokens, rows.value_bytes, rows.parallel
    router, *others = ffn.linears(hidden)
    if ffn.own_norms:
        rows.norm("router_norm", hidden)
    rows.gemms([router], tokens)
    scores = router.outputs
    rows.elementwise("router_topk", tokens, scores, tokens * (scores * value), tokens * (ffn.choices * 8))
    if ffn.shared:
        add_dense(rows, ffn.shared, "shared_")
    if ffn.shared_gate:
        rows.gemms([linear for linear in others if linear.kernel == "shared_gate"], tokens)
        rows.per_token("shared_scale", hidden, hidden + 1, hidden)
    if ffn.own_norms:
        rows.norm("shared_norm", hidden)
        rows.norm("expert_norm", hidden, first_kernel(ffn))

    rows.product(tokens, parallel.replicas, ffn.active, hidden, 8)
    spread = parallel.exchanges
    everyone = tokens * parallel.replicas
    routing = Routing(ffn.experts, ffn.active, load, parallel.expert)
    chosen, touched = routing.busiest(everyone)
    *up, down = ffn.expert_linears(hidden)
    if ffn.latent:
        rows.gemms([linear for linear in others if linear.kernel == "latent_down_proj"], tokens)
        hidden = ffn.latent
    if ffn.inner_norms:
        rows.norm("expert_norm", hidden, first_kernel(ffn))
    own = -(-tokens // parallel.tensor) if spread else everyone  # a replica splits its tokens among its devices
    # A device takes a token once, whichever of its experts it chose, and returns their sum.
    copies = own * min(ffn.active, parallel.expert)
    if spread:
        rows.collective("all_to_all", copies, hidden, _exchanged(rows, copies, hidden, up[0].kernel), parallel.expert)
    if parallel.gathers:
        rows.between_replicas("all_gather", hidden)
    if "experts" not in rows.fused:
        operand = rows.operand_bytes(up[0].kernel)
        rows.elementwise("expert_permute", chosen, hidden, chosen * (hidden * operand), chosen * (hidden * operand))
    choices = everyone * ffn.active
    # Among more devices than a token chooses experts, engines send it only where it is needed; among fewer, everything
    # to everybody (as TensorRT-LLM's select_alltoall_method_type in fused_moe_wide_ep.py decides).
    arrived = chosen if spread and parallel.expert > ffn.active else choices
    routed = -(-ffn.experts // parallel.expert), choices, arrived, chosen, touched
    for bunch in rows.bunches(up, "gate_up" in rows.fused):
        kernel = bunch[0].kernel if len(bunch) == len(up) else bunch[0].part
        _grouped(rows, bunch, *routed, kernel, routing)
    _activation(rows, ffn.expert, "expert_", chosen, ffn.expert.width // parallel.expert_width_devices)
    _grouped(rows, [down], *routed, "expert_down_proj", routing)
    if ffn.inner_norms:
        moved = chosen * (hidden * value)
        rows.elementwise("expert_post_norm", chosen, hidden, moved, moved, weight=rows.plain_bytes(hidden))
    if spread:
        rows.collective("all_to_all", copies, hidden, _exchanged(rows, copies, hidden, ""), parallel.expert)
    returned = own * ffn.active if spread else chosen
    rows.elementwise("expert_combine", own, hidden, returned * (hidden * value), own * (hidden * value))
    if spread:
        rows.all_gather(tokens, hidden)
    if parallel.gathers:
        rows.between_replicas("reduce_scatter", hidden)
    if ffn.zero:  # the token itself, times the sum of the weights of experts that pass it on; then the sum of both
        rows.per_token("zero_experts", hidden, hidden, hidden)
        rows.per_token("zero_experts", hidden, 2 * hidden, hidden)
    if ffn.latent_norm:
        if not spread:  # partial sums cannot be normalised
            rows.all_reduce(hidden)
        rows.norm("latent_norm", hidden)
    if ffn.own_norms:
        rows.norm("expert_post_norm", hidden)
    if ffn.latent:
        hidden = rows.model.hidden
        rows.gemms([linear for linear in others if linear.kernel == "latent_up_proj"], tokens)
    if ffn.shared:
        rows.per_token("shared_add", hidden, 2 * hidden, hidden)


def _exchanged(rows: KernelList, copies: np.ndarray, hidden: int, kernel: str) -> np.ndarray:
    """Return the bytes that a device sends when its tokens go to, or come back from, the devices of their experts."""
    width = rows.operand_bytes(kernel) if kernel else rows.value_bytes
    return ring_bytes(copies * (hidden * width), rows.parallel.expert)


def _grouped(
    rows: KernelList,
    bunch: list[Linear],
    experts: int,
    choices: np.ndarray,
    arrived: np.ndarray,
    chosen: np.ndarray,
    touched: np.ndarray,
    kernel: str,
    routing: Routing,
) -> None:
    """Add one GEMM over the experts of a device; it reads the weights of the experts that receive a token."""
    n, k, one = rows.matrices(bunch, rows.parallel.expert_width_devices)
    matrix = bunch[0].kernel, bunch[0].part if len(bunch) == 1 else ""
    batch = np.where(chosen > 0, np.maximum(np.rint(touched).astype(np.int64), 1), 0)
    batch = np.minimum(batch, chosen)
    rows.add(
        kernel,
        "grouped_gemm",
        -(-chosen // np.maximum(batch, 1)),
        n,
        k,
        batch=batch,
        choices=choices,
        arrived=arrived,
        experts=experts,
        macs=rows.product(chosen, n, k),
        weight=np.rint(touched * one).astype(np.int64),
        read=chosen * (k * rows.operand_bytes(*matrix)),
        write=chosen * (n * rows.value_bytes),
        devices=rows.parallel.group,
        routing=None if routing.even else routing,
        **rows.formats(*matrix),
    )
