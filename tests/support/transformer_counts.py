"""What the kernels of a transformer must add up to."""

from gpuledger.models.time_model.step import predict
from gpuledger.models.transformer import Parallel, Precision, decode, kernels, prefill
from gpuledger.models.transformer.kernels import FUSIONS
from gpuledger.readers.gpus import find_gpu


def sizes(kind, hidden, layers, heads, kv_heads, inner, vocab, **more):
    """Return a config.json with these sizes, by the names that most models have for them."""
    return {
        **{"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads},
        **{"num_key_value_heads": kv_heads, "intermediate_size": inner, "vocab_size": vocab, **more},
    }


def multiplied_per_token(model):
    """Weights that one token is multiplied with in the layers: those of the experts that it does not use are not."""
    return sum(
        group.count * linear.outputs * linear.inputs * _copies_used(group, linear)
        for group in model.layers
        for linear in group.linears(model.hidden)
        if linear.kernel != "ngram_embedding"  # a table, whose rows are looked up
        and not (group.idle or linear.for_images)
    )


def _copies_used(group, linear):
    return linear.copies if linear.grouped or linear.copies == 1 else group.ffn.active


def check_counts(model, parameters, bytes_per_token):
    """Check a model's parameters and cache against known counts, and that its passes take time on a GPU."""
    assert (model.parameters, model.kv_bytes_per_token()) == (parameters, bytes_per_token)
    for step in (prefill(256), decode(512, batch=4)):
        assert predict(kernels(model, step), find_gpu("h100-sxm"))["time_s"].gt(0).all()


def check_products(model, beside=0):
    """Check that every weight is multiplied once for each of 33 tokens, beside so many other multiplications."""
    selected = frozenset({"sparse_prompts"})  # else an indexer's short prompts attend to everything
    stages = 1 if model.cycles > 1 else 2
    for parallel, fused in ((Parallel(), FUSIONS | selected), (Parallel(pipeline=stages), selected)):
        frame = kernels(model, prefill(11, 3), parallel, Precision(), fused)
        gemms = frame[frame["kind"].isin(["gemm", "grouped_gemm"]) & ~frame["kernel"].str.startswith("attention_")]
        head = 3 * model.vocab * model.hidden
        assert (gemms["count"] * gemms["macs"]).sum() == 33 * multiplied_per_token(model) + head + beside
