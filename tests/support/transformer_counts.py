"""What the kernels of a transformer must add up to."""


def multiplied_per_token(model):
    """Weights that one token is multiplied with in the layers: those of the experts that it does not use are not."""
    return sum(
        group.count * linear.outputs * linear.inputs * (group.ffn.active if linear.copies > 1 else 1)
        for group in model.layers
        for linear in group.linears(model.hidden)
    )
