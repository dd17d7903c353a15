"""What pyproject.toml cannot say: a wheel carries the reference data that a checkout has beside ``src``."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithReferenceData(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            beside = Path(self.build_lib) / "gpuledger/checkout"
            shutil.copytree("resources", beside / "resources", dirs_exist_ok=True)
            # The one notebook that a command runs.
            (beside / "notebooks").mkdir(exist_ok=True)
            shutil.copy("notebooks/kernel_profile.ipynb", beside / "notebooks")


setup(cmdclass={"build_py": BuildWithReferenceData})
