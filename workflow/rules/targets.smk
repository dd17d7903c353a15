"""Named targets: figures and tables by the numbers of the source documents (the paper's submission), and studies."""

# Published as: Fig. 1 and 11a–c, Fig. 12, Fig. 13, Fig. 14A–D, Fig. 17A and B, Sec. 4.6, Table 3.
TARGETS = {
    "fig1": ("dmat", "fig1"),
    "fig10a": ("dmat", "fig10a"),
    "fig10b": ("dmat", "fig10b"),
    "fig10c": ("dmat", "fig10c"),
    "fig11": ("memory_usage", "fig11"),
    "fig12": ("exposed_latency", "fig12"),
    "fig13a": ("warp_scheduling", "fig13a"),
    "fig13b": ("warp_scheduling", "fig13b"),
    "fig13c": ("warp_scheduling", "fig13cd"),
    "fig13d": ("warp_scheduling", "fig13cd"),
    "fig17a": ("warp_scheduling", "fig17a"),
    "fig17b": ("warp_scheduling", "fig17b"),
    "sec45": ("block_scheduling", "zeros_4096"),
    "table2": ("kernel_overhead", "table2"),
}


for target, (study, case) in TARGETS.items():

    rule:
        name:
            target
        input:
            pages_of_target(study, case),


for study in STUDIES:

    rule:
        name:
            study
        input:
            every_case_file("notebook.html", study),


rule scorecard:
    """Every published claim, reproduced or not."""
    input:
        "results/scorecard.html",
        "results/tables/scorecard.csv",


rule downloads:
    """The files that the configured datasets fetch; it fails where the default target would do without them."""
    input:
        every_download,
