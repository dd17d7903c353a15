"""What happens to real runs: `make test-faults KILLS=20 SEED=1` runs this; GPULEDGER_WHOLE=1 kills the default target.

Whatever is done to a run, the same command again must go on and end with the same bytes.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conftest import ROOT, copy_checkout

from results import digests

KILLS, SEED = int(os.environ.get("KILLS", 20)), int(os.environ.get("SEED", 1))
WHOLE = os.environ.get("GPULEDGER_WHOLE") == "1"
CASES = ["published/kernel_overhead/table2", "published/memory_usage/fig11", "simulated/warp_scheduling/fig13a"]
SMALL = [f"results/{case}/notebook.html" for case in CASES]
#: With it, the downloads that are here join in.
WHOLE_TARGETS = ("all",)
#: What an ordinary user may do, and enter folders of others: the tests' Python may be in one.
ORDINARY = (
    "--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems and becomes another user")


def command(*targets, cores=2):
    """The same command each time; what the network has is not asked for."""
    online = [] if targets == WHOLE_TARGETS else ["--config", "datasets_online=[]"]
    return [sys.executable, "-m", "snakemake", "--cores", str(cores), *targets, *online]


def run(folder, *before, targets=SMALL, **environment):
    """Run the workflow in a folder, behind the words `before`."""
    return subprocess.run(
        [*before, *command(*targets)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def fresh(folder):
    """A checkout with the downloads that are here and no results."""
    copy_checkout(folder)
    if WHOLE:
        # Simulated traces are made anew: their making is killed as well.
        made = [file.name for file in (ROOT / "traces/simulated").iterdir() if file.is_dir()]
        shutil.copytree(ROOT / "traces", folder / "traces", dirs_exist_ok=True, ignore=shutil.ignore_patterns(*made))
    return folder


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """The digests of a run that nothing happens to."""
    folder = fresh(tmp_path_factory.mktemp("quiet") / "checkout")
    done = run(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return digests(folder)


def kill(process, how):
    """Kill a run's main process and nothing else, or its whole process group, or one of its children."""
    victims = [process.pid]
    if how == "child":
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        victims = [int(child) for child in children[-1:]]
    try:
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        if how == "group":
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def begun(folder):
    """The steps that the last run has begun."""
    return len(re.findall(r"^(?:\[\d+ of|again:)", (folder / "said").read_text(), re.MULTILINE))


def ends_before(process, folder, steps, seconds):
    """Wait until a run has begun so many steps, and some seconds longer; whether it ended before that."""
    while begun(folder) < steps and process.poll() is None:
        time.sleep(0.1)
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        return False


def test_every_killed_run_goes_on_and_ends_the_same(tmp_path, capsys):
    targets = WHOLE_TARGETS if WHOLE else SMALL
    done = run(fresh(tmp_path / "quiet"), targets=targets)
    assert done.returncode == 0, done.stderr[-3000:]
    steps, whole = int(re.search(r"^(\d+) steps:", done.stderr, re.MULTILINE)[1]), digests(tmp_path / "quiet")
    chance, kills, ends, start = random.Random(SEED), 0, 0, time.monotonic()
    while kills < KILLS:
        folder, ended, left = fresh(tmp_path / f"killed{ends}"), False, steps
        # The kills are spread over one run; where it ends before the last, the others hit another one.
        while kills < KILLS and not ended:
            how = chance.choice(["main", "group", "child"])
            after = chance.randint(0, max(1, 2 * left // (KILLS - kills + 1))), chance.uniform(0.3, 2)
            with open(folder / "said", "w") as said:
                process = subprocess.Popen(
                    command(*targets), cwd=folder, stdout=said, stderr=said, start_new_session=True
                )
                ended = ends_before(process, folder, *after)
                if not ended:
                    kill(process, how)
                    kills += 1
                process.wait()
            left = max(0, left - begun(folder))
            with capsys.disabled():
                print(
                    f"\n{time.monotonic() - start:.0f} s: kill {kills} of {KILLS} ({how}) after {begun(folder)} steps",
                    end="",
                    flush=True,
                )
        done = run(folder, targets=targets)
        assert done.returncode == 0, done.stderr[-3000:]
        made, ends = digests(folder), ends + 1
        assert {name for name in whole | made if whole.get(name) != made.get(name)} == set()
        assert not list((folder / "results").rglob(".????????.*"))
        with capsys.disabled():
            print(f"\n{kills} kills of {KILLS}, {ends} ends identical", end="", flush=True)


CONDITIONS = {
    "LC_ALL=C": {"LC_ALL": "C"},
    "LC_ALL=de_DE": {"LC_ALL": "de_DE.UTF-8"},
    "another time zone": {"TZ": "Pacific/Auckland"},
    "no home": {"HOME": "/dev/null/nobody"},
    "no folder for temporary files": {"TMPDIR": "/dev/null/x"},
}


@pytest.mark.parametrize("environment", CONDITIONS.values(), ids=CONDITIONS)
def test_surroundings_change_nothing(expected, tmp_path, environment):
    if locale := environment.get("LC_ALL", "").removesuffix(".UTF-8").strip("C"):
        # It need not be installed: a test with an unknown locale would be one with C.
        subprocess.run(["localedef", "-i", locale, "-f", "UTF-8", tmp_path / f"{locale}.UTF-8"], check=True)
        environment = environment | {"LOCPATH": str(tmp_path)}
    done = run(fresh(tmp_path / "checkout"), **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert digests(tmp_path / "checkout") == expected


def test_a_path_with_spaces_and_an_umlaut_changes_nothing(expected, tmp_path):
    folder = fresh(tmp_path / "mein schöner Ordner für 'alles'")
    done = run(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert digests(folder) == expected


def test_a_private_umask_is_kept_and_changes_no_bytes(expected, tmp_path):
    folder = fresh(tmp_path / "checkout")
    done = run(folder, "sh", "-c", 'umask 077; exec "$@"', "sh")
    assert done.returncode == 0, done.stderr[-3000:]
    assert digests(folder) == expected
    assert {file.stat().st_mode & 0o077 for file in (folder / "results").rglob("*.*")} == {0}


def test_of_two_runs_at_once_one_is_refused_and_the_other_finishes(expected, tmp_path):
    folder = fresh(tmp_path / "checkout")
    runs = [
        subprocess.Popen(command(*SMALL), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in runs]
    refused = [words for process, words in zip(runs, said, strict=True) if process.returncode]
    assert len(refused) == 1 and "cannot be locked" in refused[0], said
    assert digests(folder) == expected


@pytest.fixture
def open_folder():
    """A folder that another user can enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_an_ordinary_user_makes_the_same(expected, open_folder):
    folder = fresh(open_folder / "checkout")
    subprocess.run(["chown", "-R", "65534:65534", folder], check=True)
    done = run(folder, "setpriv", *ORDINARY.split(), HOME="/nonexistent")
    assert done.returncode == 0, done.stderr[-3000:]
    assert digests(folder) == expected
    assert {file.stat().st_uid for file in (folder / "results").rglob("*")} == {65534}


def one_line(done, *words):
    """A run failed, and said why in one line of gpuledger's with all `words`, without a traceback."""
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said and "a defect" not in said, said
    assert [line for line in said.splitlines() if all(word in line for word in words)], said


@needs_root
def test_a_folder_of_another_user_is_one_line(open_folder):
    done = run(fresh(open_folder / "checkout"), "setpriv", *ORDINARY.split())
    one_line(done, ".snakemake: no file can be made here (Permission denied)", "correct the permissions")


@needs_root
@pytest.mark.parametrize("part", [".", "results"])
def test_a_file_system_that_cannot_be_written_is_one_line(tmp_path, part):
    folder = fresh(tmp_path / "checkout")
    (folder / part).mkdir(exist_ok=True)
    mount = f'mount --bind {part} {part} && mount -o remount,bind,ro {part} && cd "$PWD" && exec "$@"'
    done = run(folder, "unshare", "--mount", "sh", "-c", mount, "sh")
    one_line(done, "Read-only file system", "; work in a folder that can be written")


@needs_root
def test_a_disk_without_any_room_is_one_line(tmp_path):
    fresh(tmp_path / "checkout")
    # What Snakemake keeps, its own log included, is on the full disk.
    script = """
        mkdir .snakemake && mount -t tmpfs -o size=64k tmpfs .snakemake && mkdir .snakemake/log
        head -c 1m /dev/zero > .snakemake/filler 2> /dev/null
        cd "$PWD" && exec "$@"
    """
    done = run(tmp_path / "checkout", "unshare", "--mount", "sh", "-c", script, "sh")
    one_line(done, ".snakemake: no file can be made here", "free disk space, and run the same command again")


@needs_root
def test_no_room_for_temporary_files_is_one_line(tmp_path):
    fresh(tmp_path / "checkout")
    # So much room that Python takes the folder, and Snakemake's copies of its files do not fit.
    script = """
        mkdir temporary && mount -t tmpfs -o size=64k tmpfs temporary && head -c 52k /dev/zero > temporary/filler
        TMPDIR="$PWD/temporary" exec "$@"
    """
    done = run(tmp_path / "checkout", "unshare", "--mount", "sh", "-c", script, "sh")
    one_line(done, "temporary: no room for temporary files", "set TMPDIR to a folder with more")


@needs_root
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(expected, tmp_path):
    folder = fresh(tmp_path / "checkout")
    # At first there is room; then something else takes it while the run is on its way.
    script = """
        mkdir results && mount -t tmpfs -o size=80m tmpfs results
        (while ! ls results/published/*/*/summary.json; do sleep 0.1; done; head -c 90m /dev/zero > results/filler) \\
            > /dev/null 2>&1 &
        "$@"; first=$?; wait; rm results/filler
        "$@" > /dev/null 2>&1 || exit 3
        mkdir kept && cp -r results/* kept; exit $first
    """
    done = run(folder, "unshare", "--mount", "sh", "-c", script, "sh")
    one_line(done, "No space left on device; free disk space, and run the same command again")
    shutil.rmtree(folder / "results")
    (folder / "kept").rename(folder / "results")
    assert digests(folder) == expected
