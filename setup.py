"""What pyproject.toml cannot say: configs, recipes and search spaces go into the wheel from where they lie."""

from setuptools import find_packages, setup

# raydr.config.files looks for them there.
SHIPPED = {
    "raydr.shipped.configs": "configs",
    "raydr.shipped.benchmarks": "configs/benchmarks",
    "raydr.shipped.experiments": "configs/experiments",
    "raydr.shipped.recipes": "jobs/recipes",
    "raydr.shipped.tune_spaces": "tune_spaces",
}

setup(
    packages=[*find_packages(include=["raydr", "raydr.*"]), *SHIPPED],
    package_dir=SHIPPED,
    package_data={
        "raydr": ["py.typed"],
        "raydr.ops": ["*.md"],
        "raydr.verbs": ["*.yaml"],
        "raydr.pages": ["*.css", "*.js", "review/*"],
        **{name: ["*.yaml"] for name in SHIPPED},
    },
    include_package_data=False,
)
