"""What is said of a checkpoint's quantisation elsewhere than under ``quantization_config``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger.errors import InputError


def with_quantisation_beside(content: dict[str, Any], file: Path, load: Callable[[Path], dict]) -> dict[str, Any]:
    """Add what MLX has under ``quantization``, and what Model Optimizer and ExLlamaV3 write beside the config.json."""
    stated = content.get("quantization_config")
    own = content.get("quantization")
    if isinstance(own, dict) and "bits" in own:
        # mlx-lm writes the same once more as quantization_config.
        rest = {key: value for key, value in content.items() if key != "quantization"}
        return {**rest, "quantization_config": {**own, "quant_method": "mlx"}}
    if isinstance(stated, dict) and "quant_method" not in stated and {"bits", "group_size"} <= stated.keys():
        return {**content, "quantization_config": {**stated, "quant_method": "mlx"}}
    if isinstance(stated, dict) and stated.get("quant_method") == "exl3":
        beside = file.with_name("quantization_config.json")
        more = load(beside) if beside.is_file() and beside != file else {}
        return {**content, "quantization_config": {**stated, **more}}
    beside = file.with_name(f"{file.stem.removesuffix('config')}hf_quant_config.json")
    if stated is not None or not file.stem.endswith("config") or not beside.is_file():
        return content
    settings = load(beside).get("quantization")
    if not isinstance(settings, dict):
        raise InputError(beside, "key quantization", "it is missing or not an object", "download the file again")
    return {**content, "quantization_config": {"quant_method": "modelopt", **settings}}
