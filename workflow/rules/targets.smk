"""Named targets: figures and tables by the numbers of the source documents (the paper's submission), and studies."""

# The map of the paper, which the gallery shows as well.
PAPER = [entry for entry in schemas.load_yaml(ROOT / "resources/paper.yaml") if "target" in entry]

for entry in PAPER:

    rule:
        name:
            entry["target"]
        input:
            pages_of_target(entry["study"], entry["case"]),


for study in STUDIES:

    rule:
        name:
            study
        input:
            pages_of_target(study),


rule scorecard:
    """Every published claim, reproduced or not."""
    input:
        "results/scorecard.html",
        "results/tables/scorecard.csv",


rule paper:
    """A LaTeX document with every figure and table."""
    input:
        "results/paper/paper.tex",


rule across:
    """A figure for each study that draws its cases of all datasets side by side."""
    input:
        every_figure_across,


rule downloads:
    """What the datasets of the key `datasets` fetch; it fails where the default target would do without them."""
    input:
        every_download,
