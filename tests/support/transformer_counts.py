"""What the kernels of a transformer must add up to."""


def multiplied_per_token(model):
    """Weights that one token is multiplied with in the layers: those of the experts that it does not use are not."""
    return sum(
        group.count * linear.outputs * linear.inputs * _copies_used(group, linear)
        for group in model.layers
        for linear in group.linears(model.hidden)
    )


def _copies_used(group, linear):
    return linear.copies if linear.grouped or linear.copies == 1 else group.ffn.active
