"""Speed and accuracy of the scaling laws, and Extra-P on the same series.

    python benchmarks/scaling_laws.py [--series N] [--repeats N] [--draws N] [--extrap PYTHON|install]

Writes results/benchmarks/series.csv (speed) and laws.csv (accuracy). The speed is that of 10,000 series of 5 to 9
sizes in one table, the compiled loops loaded. The accuracy is on the public benchmark of
tests/support/law_benchmark.py: how often the law is named, the SMAPE of the law at its own points, and the error of the
prediction at twice the largest size against the law without noise.

Extra-P 4.2.5 names no laws; what it fits is compared by the two errors. It wants numpy 1 and this project has numpy 2,
so it runs in an environment of its own: `--extrap` names a Python that has it, or `install` makes one in a temporary
folder.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np
import pandas as pd
from measure import ROOT, import_unit, install, write

from gpuledger.models.scaling_laws import fit, fit_many, fit_product

sys.path.insert(0, str(ROOT / "tests/support"))
import law_benchmark

EXTRAP = "extrap==4.2.5"
#: Reads series as JSON, writes the fitted values at their sizes and at twice the largest.
CHILD = """
import json, sys, warnings
import numpy as np
from extrap.entities.callpath import Callpath
from extrap.entities.coordinate import Coordinate
from extrap.entities.measurement import Measurement
from extrap.entities.metric import Metric
from extrap.modelers import single_parameter
warnings.simplefilter("ignore")
path, metric, results = Callpath("kernel"), Metric("counter"), []
for x, y in json.load(sys.stdin):
    measured = [Measurement(Coordinate(n), path, metric, [value]) for n, value in zip(x, y)]
    model = single_parameter.all_modelers["Default"]().model([measured])[0]
    sizes = np.array([*x, 2 * x[-1]])
    values = np.broadcast_to(model.hypothesis.function.evaluate(sizes), sizes.shape)
    results.append([values.tolist(), model.hypothesis.function.to_string()])
json.dump(results, sys.stdout)
"""
NOISES = (0.0, 0.01, 0.05)
COLUMNS = ("noise_percent", "law", "named_percent", "smape_percent", "at_twice_percent", "in_interval_percent")
COLUMNS += ("extrap_smape_percent", "extrap_at_twice_percent", "draws")
#: Laws that Extra-P's normal form lacks, on the sizes of a usual sweep.
SIZES = np.array([64, 128, 256, 512, 1024], float)
STEPPED = np.array([96, 200, 300, 500, 700], float)
WITHOUT_NOISE = {
    "flat, then linear": (SIZES, 390 + 1.5 * np.maximum(SIZES - 256, 0)),
    "staircase of 128": (STEPPED, 1000 * np.ceil(STEPPED / 128) + 200),
    "a + b·n + c·n²": (SIZES, 5e5 + 100 * SIZES + 2 * SIZES**2),
}


def smape(measured, fitted) -> float:
    return float(np.mean(200 * np.abs(fitted - measured) / np.maximum(np.abs(fitted) + np.abs(measured), 1e-300)))


def time_series(series: int, repeats: int) -> None:
    """Time `fit_many` on `series` series of all laws, half of them with noise, 7 of 10 rounded to counts."""
    random = np.random.default_rng(0)
    parts = []
    kinds = [(points, geometric) for points in range(5, 10) for geometric in (False, True)]
    for index, (points, geometric) in enumerate(kinds):
        x = 64 * 2.0 ** np.arange(points) if geometric else 128 * np.arange(1, points + 1.0)
        count = len(range(index, series, len(kinds)))
        a, b = random.uniform(1e3, 1e5, (count, 1)), random.uniform(1, 100, (count, 1))
        curves = [a + 0 * x, b * x, a + b * x, a * np.sqrt(x), b * x * np.log2(x), a + b * x + b / 50 * x**2]
        curves += [a * x / (x + 200), a + b * np.maximum(x - x[points // 2], 0), a * np.ceil(x / 192)]
        chosen = random.integers(0, len(curves), (count, 1))
        y = np.choose(chosen, [np.broadcast_to(curve, (count, points)) for curve in curves])
        y = y * (1 + random.choice([0, 0.01], (count, 1)) * random.standard_normal((count, points)))
        y = np.where(random.random((count, 1)) < 0.7, np.round(y), y)
        names = np.repeat([f"{index}.{i}" for i in range(count)], points)
        parts.append(pd.DataFrame({"series": names, "n": np.tile(x, count), "value": y.ravel()}))
    frame = pd.concat(parts, ignore_index=True)
    fit_many(frame[frame["series"].str.endswith(".0")], "series", "n")
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = fit_many(frame, "series", "n")
        times.append(time.perf_counter() - start)
    known = {"series": len(found), "wall_s": median(times), "largest_s": max(times), "repeats": repeats}
    write("series", [known | {"import_units": median(times) / import_unit()}])


def run_extrap(python: str, series: list) -> list:
    """Extra-P's values at the sizes of every (x, y) and at twice the largest, and its formula."""
    given = json.dumps([(x.tolist(), y.tolist()) for x, y in series])
    return json.loads(
        subprocess.run([python, "-c", CHILD], input=given, capture_output=True, check=True, text=True).stdout
    )


def compare_examples(python: str | None) -> None:
    """Series without noise of laws that Extra-P's normal form does not have."""
    print("\nwithout noise, SMAPE in %       gpuledger   Extra-P")
    theirs = run_extrap(python, list(WITHOUT_NOISE.values())) if python else [None] * len(WITHOUT_NOISE)
    for (name, (x, y)), other in zip(WITHOUT_NOISE.items(), theirs, strict=True):
        found = fit(x, y)
        line = f"  {name:28} {found.error_percent:9.4f}"
        line += f" {smape(y, np.array(other[0][:-1])):9.2f}" if other else "         –"
        print(f"{line}   {found.formula}" + (f"   {other[1]}" if other else ""))


def compare_draws(count: int, python: str | None) -> None:
    """The public benchmark, law by law; medians in percent."""
    rows = []
    for noise in NOISES:
        for law in law_benchmark.LAWS:
            drawn = law_benchmark.draws(law, noise, count)
            ours, named, held = [], 0, 0
            truths = [float(draw.truth(np.array([2 * draw.x[-1]]))[0]) for draw in drawn]
            for draw, truth in zip(drawn, truths, strict=True):
                found = fit(draw.x, draw.y)
                value, low, high = (float(part) for part in found.predict(2 * draw.x[-1]))
                named += found.law == law
                # The interval of a series without noise is as narrow as the digits of its coefficients.
                held += low - 1e-5 * abs(truth) <= truth <= high + 1e-5 * abs(truth)
                ours.append((found.error_percent, 100 * abs(value / truth - 1)))
            rows.append(_row(noise, law, named / count, ours) | {"in_interval_percent": 100 * held / count})
            if python:
                values = [np.array(result[0]) for result in run_extrap(python, [(draw.x, draw.y) for draw in drawn])]
                errors = [smape(draw.y, value[:-1]) for draw, value in zip(drawn, values, strict=True)]
                beyonds = [100 * abs(value[-1] / truth - 1) for value, truth in zip(values, truths, strict=True)]
                rows[-1] |= {"extrap_smape_percent": median(errors), "extrap_at_twice_percent": median(beyonds)}
        right, errors = 0, []
        for draw in law_benchmark.product_draws(noise, count):
            found = fit_product(draw.x1, draw.x2, draw.y, ("x1", "x2"))
            right += law_benchmark.is_right(draw, found.surface.form)
            beyond = np.array([2 * draw.x1.max(), 2 * draw.x2.max()])
            errors.append((found.error_percent, 100 * abs(found.predict(beyond) / draw.truth(*beyond) - 1)))
        rows.append(_row(noise, "product", right / count, errors))
    write("laws", [dict.fromkeys(COLUMNS, "") | row | {"draws": count} for row in rows])


def _row(noise: float, law: str, named: float, errors: list[tuple[float, float]]) -> dict:
    at_points, at_twice = map(float, np.nanmedian(errors, axis=0))
    found = {"noise_percent": 100 * noise, "law": law, "named_percent": 100 * named}
    return found | {"smape_percent": at_points, "at_twice_percent": at_twice}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--series", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--extrap", help="a Python that has Extra-P, or `install`")
    arguments = parser.parse_args()
    time_series(arguments.series, arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        python = arguments.extrap
        try:
            python = install(folder, EXTRAP) if python == "install" else python
            if python:
                run_extrap(python, [])
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"Extra-P could not be run ({error}): its columns are left out")
            python = None
        if not arguments.extrap:
            print("Extra-P is left out: --extrap install runs it in an environment of its own")
        compare_examples(python)
        compare_draws(arguments.draws, python)


if __name__ == "__main__":
    main()
