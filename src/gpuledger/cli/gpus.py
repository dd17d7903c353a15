"""``gpuledger gpus``: the data sheets."""

import click

from gpuledger.cli.terminal import json_option, print_json, print_table

_FACTS = ("name", "title", "architecture", "aliases", "sms", "clock_hz", "dram_bytes_per_s", "dram_bytes", "l2_bytes")
_FACTS += ("memory", "link_bytes_per_s", "peer_bytes_per_s", "board_power_w", "hypothetical", "source")
_PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")


@click.command(short_help="List data sheets of GPUs.", epilog="Example: gpuledger gpus --json")
@click.argument("table", required=False, type=click.Path(dir_okay=False))
@json_option
def gpus(table: str | None, as_json: bool) -> None:
    """List the data sheets of GPUs, those of the ledger or of a TABLE of your own (CSV or .xlsx)."""
    from gpuledger.readers.gpus import read_gpus

    found = read_gpus(table).values()
    if as_json:
        print_json(
            [
                {name: getattr(gpu, name) for name in _FACTS}
                | {f"{name}_flop_per_s": peak for name, peak in gpu.flops.items()}
                for gpu in found
            ]
        )
        return
    headers = [
        *("name", "title", "SMs", "clock (MHz)", "DRAM (GiB)", "DRAM (GB/s)"),
        *("L2 (MiB)", "links (GB/s)", "power (W)"),
    ]
    headers += [f"{name.upper()} (TFLOP/s)" for name in _PRECISIONS]
    rows = []
    for gpu in found:
        peaks = [f"{gpu.flops[name] / 1e12:.5g}" if gpu.flops.get(name) else "" for name in _PRECISIONS]
        plain = [
            *(f"{gpu.clock_hz / 1e6:.0f}", _known(gpu.dram_bytes / 2**30, ".4g"), f"{gpu.dram_bytes_per_s / 1e9:.0f}"),
            *(f"{gpu.l2_bytes / 2**20:g}", _known(gpu.link_bytes_per_s / 1e9), _known(gpu.board_power_w)),
        ]
        rows.append([gpu.name, gpu.title, str(gpu.sms), *plain, *peaks])
    spare = ["title", *(f"{name} (TFLOP/s)" for name in ("FP64", "FP32", "TF32", "FP16", "FP4", "FP8"))]
    print_table(headers, rows, right=range(2, len(headers)), spare=spare)


def _known(value: float, form: str = ".0f") -> str:
    return "" if value != value else f"{value:{form}}"
