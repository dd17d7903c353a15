"""From the keys of a config.json to the layers that a token passes several times."""

from gpuledger.models.transformer.blocks.cycle import Cycle
from gpuledger.models.transformer.rules.keys import MAX_LAYERS, ConfigKeys


def of_ouro(keys: ConfigKeys, layers: int) -> Cycle | None:
    """All layers, so many times; the last norm ends each cycle."""
    times = keys.integer("total_ut_steps", MAX_LAYERS // layers, 4)
    return Cycle(0, layers, times, normed=True) if times > 1 else None


def of_inkling2(keys: ConfigKeys, layers: int) -> Cycle | None:
    """Those from one layer up to another, each at the beginning of a block of the residuals (Inkling 2 Mini).

    Later cycles begin with what the layers before them made, and take messages from the cycle before.
    """
    inner = keys.inner("loop_config")
    start, end, times = (
        inner.integer(own, MAX_LAYERS, keys.integer(name, MAX_LAYERS, usual))
        for own, name, usual in (
            ("core_start", "loop_layer_index_start", 6),
            ("core_end", "loop_layer_index_end", 18),
            ("num_passes", "loop_num_passes", 3),
        )
    )
    every = keys.integer("attn_res_block_size", MAX_LAYERS)
    if not start < end <= layers or start % every or end % every:
        problem = f"layers {start} to {end} of {layers} are no whole blocks of {every}"
        raise keys.error("loop_layer_index_end", problem, "correct one of them")
    if layers + (times - 1) * (end - start) > MAX_LAYERS:
        raise keys.error("loop_num_passes", f"{times} times are too many", "correct it")
    return Cycle(start, end - start, times) if times > 1 else None
