"""Values that no key of a config.json may have, or only some."""

import copy

from gpuledger.errors import InputError
from gpuledger.models.transformer import read_model

HOSTILE = (
    -1,
    0,
    10**400,
    -(10**400),
    1.5,
    float("nan"),
    float("inf"),
    "x",
    "9" * 400,
    3,
    [],
    [{}],
    [[1], None],
    {"a": {}},
    None,
    True,
)


def _places(content):
    """Every object of a configuration and every key in it."""
    for key, value in content.items():
        yield content, key
        for inner in [value] if isinstance(value, dict) else value if isinstance(value, list) else []:
            if isinstance(inner, dict):
                yield from _places(inner)


def check_hostile_values(config, content, share=4):
    """Check that a file with any of these values of any key is read or refused; at least *share* a key are refused."""
    content = copy.deepcopy(content)
    refused = 0
    for holder, key in list(_places(content)):
        before = holder[key]
        for value in HOSTILE:
            holder[key] = value
            try:
                model = read_model(config(content))
                assert model.parameters > 0 and model.weight_bytes() > 0 and model.kv_bytes_per_token() >= 0
            except InputError:
                refused += 1
        holder[key] = before
    assert refused > share * len(content)
