"""Which tiles real models find: by the experts of a rank and the columns of one on each GPU."""

import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd

from gpuledger import files
from gpuledger.errors import InputError, InputWarning
from gpuledger.models.time_model.triton_tiles import tuned_shapes
from gpuledger.models.transformer import Experts, Model, read_model

#: GPUs that share each expert, and precisions of weights that there are files for.
SPLITS, PRECISIONS = (1, 2, 4, 8), ("bf16", "fp8", "fp8_block")
#: What names of quantised checkpoints end with.
_FORMAT = re.compile("-(NVFP4|FP8|BF16)$", re.IGNORECASE)


def model_rows(engine: str, gpu: str, configs: Path | None = None) -> pd.DataFrame:
    """Return for which splits of real models' experts an engine ships tiles.

    Parameters
    ----------
    engine : str
        ``sglang`` or ``vllm``.
    gpu : str
        Its id.
    configs : path, optional
        A folder of ``<organisation>--<name>_config.json``, besides ``resources/models``. Configurations that cannot be
        read are left out.

    Returns
    -------
    DataFrame
        ``model`` (names of those with the same experts)``, experts, inter`` (columns of one)``, chosen, gpus`` (one of
        `SPLITS`)``, precision, tuned``. With a shared expert tiles for one expert more count as well: SGLang computes
        it as one of the others.
    """
    known = tuned_shapes(engine, gpu)
    found: dict[tuple[int, int, int, bool], list[str]] = {}
    for name, model in _models(configs):
        for block in dict.fromkeys(group.ffn for group in model.layers):
            if isinstance(block, Experts):
                key = block.experts, block.expert.width, block.active, block.shared is not None
                found.setdefault(key, []).append(_FORMAT.sub("", name))
    rows = [
        (", ".join({name.lower(): name for name in names}.values()), experts, inter, chosen, split, precision, tuned)
        for (experts, inter, chosen, shared), names in sorted(found.items())
        for split in SPLITS
        if inter % split == 0
        for precision in PRECISIONS
        for tuned in [any((precision, experts + more, inter // split) in known for more in range(1 + shared))]
    ]
    columns = ["model", "experts", "inter", "chosen", "gpus", "precision", "tuned"]
    return pd.DataFrame(rows, columns=columns).assign(kind="model")


def model_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`model_rows` as a table with a column for every split.

    Returns
    -------
    DataFrame
        ``model, experts, inter, chosen`` and, for every one of `SPLITS`, ``gpus_<n>``: the precisions with tiles,
        separated by commas (``–``: none; empty: the columns do not divide).
    """
    rows = []
    keys = ["experts", "inter", "chosen", "model"]
    for key, part in data[data["kind"] == "model"].groupby(keys):
        row = dict(zip(keys, key, strict=True))
        for split in SPLITS:
            own = part[part["gpus"] == split]
            row[f"gpus_{split}"] = (", ".join(own.loc[own["tuned"], "precision"]) or "–") if len(own) else ""
        rows.append(row)
    return pd.DataFrame(rows, columns=["model", *keys[:3], *(f"gpus_{split}" for split in SPLITS)])


def _models(configs: Path | None) -> Iterator[tuple[str, Model]]:
    paths = {path.stem: path for path in sorted((files.RESOURCES / "models").glob("*.json"))}
    if configs:
        own = (path for path in sorted(configs.glob("*_config.json")) if not path.stem.endswith("quant_config"))
        paths |= {path.stem.removesuffix("_config").rpartition("--")[2]: path for path in own}
    for name, path in sorted(paths.items()):
        # What else of a model is not read does not matter here.
        with warnings.catch_warnings(), suppress(InputError):
            warnings.simplefilter("ignore", InputWarning)
            yield name, read_model(path)
