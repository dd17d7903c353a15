"""Training steps of four layers in JAX, random weights: python training_step.py FOLDER (for jax.profiler.trace)."""
import os
import sys

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax
import jax.numpy as jnp

LAYERS, HIDDEN, INTERMEDIATE, HEADS, BATCH, TOKENS = 4, 2048, 8192, 16, 4, 1024
key = jax.random.key(0)


def weights(key):
    def weight(rows, columns, number):
        return jax.random.normal(jax.random.fold_in(key, number), (rows, columns), jnp.bfloat16) * rows**-0.5

    return [
        dict(
            qkv=weight(HIDDEN, 3 * HIDDEN, 9 * layer), o=weight(HIDDEN, HIDDEN, 9 * layer + 1),
            up=weight(HIDDEN, 2 * INTERMEDIATE, 9 * layer + 2), down=weight(INTERMEDIATE, HIDDEN, 9 * layer + 3),
        )
        for layer in range(LAYERS)
    ]


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-5).astype(x.dtype)


def model(parameters, x):
    for layer in parameters:
        q, k, v = (norm(x) @ layer["qkv"]).reshape(BATCH, TOKENS, 3, HEADS, HIDDEN // HEADS).transpose(2, 0, 1, 3, 4)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        x = x + y.reshape(BATCH, TOKENS, HIDDEN) @ layer["o"]
        gate, up = jnp.split(norm(x) @ layer["up"], 2, -1)
        x = x + (jax.nn.silu(gate) * up) @ layer["down"]
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


@jax.jit
def step(parameters, x):
    loss, gradients = jax.value_and_grad(model)(parameters, x)
    return jax.tree.map(lambda weight, gradient: weight - (1e-3 * gradient).astype(weight.dtype), parameters, gradients), loss


parameters = weights(key)
x = jax.random.normal(key, (BATCH, TOKENS, HIDDEN), jnp.bfloat16)
for _ in range(3):
    parameters, loss = step(parameters, x)
loss.block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for number in range(3):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            parameters, loss = step(parameters, x)
            loss.block_until_ready()
