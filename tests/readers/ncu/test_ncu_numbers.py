"""Units and numbers, and round trips of generated tables."""

import csv
import io
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import InputError
from gpuledger.readers import ncu

LONG = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
]


@pytest.mark.parametrize(
    ("unit", "base"),
    [
        ("byte", ("byte", 0)),
        ("Kbyte", ("byte", 3)),
        ("Mbyte", ("byte", 6)),
        ("Gbyte", ("byte", 9)),
        ("Tbyte", ("byte", 12)),
        ("byte/second", ("byte/s", 0)),
        ("Mbyte/second", ("byte/s", 6)),
        ("Gbyte/s", ("byte/s", 9)),
        ("byte/nsecond", ("byte/s", 9)),
        ("byte/block", ("byte/block", 0)),
        ("Kbyte/block", ("byte/block", 3)),
        ("nsecond", ("ns", 0)),
        ("usecond", ("ns", 3)),
        ("msecond", ("ns", 6)),
        ("second", ("ns", 9)),
        ("ns", ("ns", 0)),
        ("us", ("ns", 3)),
        ("ms", ("ns", 6)),
        ("s", ("ns", 9)),
        ("hz", ("hz", 0)),
        ("Khz", ("hz", 3)),
        ("Mhz", ("hz", 6)),
        ("Ghz", ("hz", 9)),
        ("cycle/second", ("hz", 0)),
        ("cycle/usecond", ("hz", 6)),
        ("cycle/nsecond", ("hz", 9)),
        ("inst/cycle", ("inst/cycle", 0)),
        ("Ginst/s", ("inst/s", 9)),
        ("register/thread", ("register/thread", 0)),
        ("%", ("%", 0)),
        ("", ("", 0)),
        ("kernel", ("kernel", 0)),
        ("Kibyte", ("Kibyte", 0)),
        ("FLOP", ("FLOP", 0)),
    ],
)
def test_base_units(unit, base):
    assert ncu.base_unit(unit) == base


def write(rows, header=LONG):
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([header, *rows])
    return text.getvalue()


def read(text, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_text(text, encoding="utf-8", newline="")
        return ncu.read(path, **options)


def read_values(*values, units=None, metrics=None, **options):
    units, metrics = units or ["byte"] * len(values), metrics or [f"m{i}" for i in range(len(values))]
    rows = [
        ["0", "1", "p", "h", "k", "1", "7", "(1, 1, 1)", "(1, 1, 1)", "0", "8.0", "s", metric, unit, value]
        for metric, unit, value in zip(metrics, units, values, strict=True)
    ]
    return read(write(rows), **options)


@pytest.mark.parametrize(
    ("printed", "values"),
    [
        (["1,234", "0.5"], [1234, 0.5]),
        (["1.234", "0,5"], [1234, 0.5]),
        (["1,234,567"], [1234567]),
        (["1.234.567", "1.234"], [1234567, 1234]),
        (["7,537,349,397.59"], [7537349397.59]),
        (["12,34,567", "1,000"], [1234567, 1000]),  # groups of India
        (["30 221", "1,234"], [30221, 1.234]),  # spaces group, so the comma does not
        (["30221", "1.234"], [30221, 1.234]),  # nothing is grouped
        (["30221", "1,234"], [30221, 1.234]),
        (["1'234'567.5"], [1234567.5]),
        (["1 234", "1,234.5"], [1234, 1234.5]),
        (["12", "345"], [12, 345]),
        (["0.123", "1e+06", "-2.5E-3", "+4", ".5", "7."], [0.123, 1e6, -0.0025, 4, 0.5, 7]),
    ],
)
def test_the_decimal_sign_is_decided_per_file(printed, values):
    report = read_values(*printed)
    assert report.metrics["value"].tolist() == values


@pytest.mark.parametrize("printed", [["1.234"], ["1,234", "12"], ["1.234", "5,678"], ["-1,234"]])
def test_an_undecidable_sign_is_refused(printed):
    with pytest.raises(InputError, match=r"is ambiguous \(thousands or decimals\), and so is every other value"):
        read_values(*printed)


def test_the_caller_may_say_the_sign():
    assert read_values("1.234", decimal=".").metrics["value"].tolist() == [1.234]
    assert read_values("1.234", decimal=",").metrics["value"].tolist() == [1234]


def test_a_number_of_blocks_settles_the_sign():
    report = read_values("1.234", "5.678", metrics=["launch__grid_size", "m"])
    assert report.metrics["value"].tolist() == [1234, 5678]


def test_sums_of_counters_are_whole():
    metrics, units = ["smsp__inst_executed.sum", "m"], ["inst", ""]
    assert read_values("1,024", "2,048", metrics=metrics, units=units).metrics["value"].tolist() == [1024, 2048]
    for metric, unit in (("gpu__time_duration.sum", "us"), ("dram__bytes.sum", "Mbyte"), ("a__rate.sum", "%")):
        with pytest.raises(InputError, match="is ambiguous"):
            read_values("1,024", metrics=[metric], units=[unit])


def test_two_locales_in_one_file_are_refused():
    with pytest.raises(InputError, match=r"'1\.5' has a decimal point, '2,5' a decimal comma; keep"):
        read_values("1.5", "2,5")


@pytest.mark.parametrize("text", ["n/a", "No-CC", "0x3", "12.4.1", "nan", "inf", "1 2", "(1, 2, 3)", "1e999", "-", "٣"])
def test_other_values_are_text(text):
    report = read_values(text, "0.5")
    assert report.metrics["text"].astype(object).tolist()[0] == text
    assert report.metrics["value"].isna().tolist() == [True, False]


def test_scaling_rounds_once():
    printed = [f"{i / 100:.2f}" for i in range(1, 1000)]
    report = read_values(*printed, units=["Mbyte"] * len(printed))
    assert report.metrics["value"].tolist() == [i * 10_000 for i in range(1, 1000)]
    assert (report.metrics["unit"] == "byte").all()


def test_auto_scaled_values_of_one_metric_agree():
    report = read_values("4.00", "4000.00", "4000000", units=["Gbyte", "Mbyte", "Kbyte"])
    assert report.metrics["value"].tolist() == [4e9] * 3


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)
KERNELS = NAMES.map(str.strip).filter(bool)
VALUES = st.one_of(
    st.integers(-(2**53), 2**53).map(Decimal),
    st.decimals(-(10**12), 10**12, allow_nan=False, allow_infinity=False, places=2),
)


@st.composite
def tables(draw):
    metrics = draw(st.lists(st.sampled_from([f"m{i}.sum" for i in range(9)]), min_size=1, max_size=5, unique=True))
    kernels = draw(st.lists(KERNELS, min_size=1, max_size=5))
    return metrics, kernels, [[draw(VALUES) for _ in metrics] for _ in kernels]


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from([(".", ","), (",", "."), (".", ""), (",", "\u202f")]))
def test_long_tables_round_trip(content, signs):
    metrics, kernels, values = content
    decimal, thousands = signs
    translation = str.maketrans({",": thousands, ".": decimal})
    fixed = ["1", "7", "(1, 1, 1)", "(2, 3, 4)", "0", "8.0", "s"]
    rows = [
        [str(launch), "1", "p", "h", kernel, *fixed, metric, "inst", f"{value:,}".translate(translation)]
        for launch, kernel in enumerate(kernels)
        for metric, value in zip(metrics, values[launch], strict=True)
    ]
    settle = [*rows[0][:-3], "settle", "%", f"0{decimal}5"]
    report = read(write([*rows, settle]))
    assert report.metrics["value"].tolist()[:-1] == [float(value) for row in values for value in row]
    assert [str(kernel) for kernel in report.launches["kernel"]] == kernels
    assert report.launches["grid_blocks"].tolist() == [24] * len(kernels)


@settings(max_examples=40, deadline=None)
@given(tables())
def test_wide_and_long_pages_say_the_same(content):
    metrics, kernels, values = content
    header = ["ID", "Process ID", "Kernel Name", *metrics, "settle"]
    units = ["", "", "", *["Kbyte"] * len(metrics), "%"]
    rows = [
        [str(launch), "1", kernel, *(f"{value:,}" for value in values[launch]), "0.5"]
        for launch, kernel in enumerate(kernels)
    ]
    report = read(write([units, *rows], header))
    found = report.metrics.loc[report.metrics["metric"] != "settle", "value"].tolist()
    assert found == [float(value.scaleb(3)) for row in values for value in row]
    assert [str(kernel) for kernel in report.launches["kernel"]] == kernels
