# Build, measure, collect, draw, typeset. `snakemake --cores 8` does everything for the machine it stands on,
# `snakemake --cores 8 paper` rebuilds the paper from results/record without measuring anything. All rules run in
# the environment that runs Snakemake: one lock describes it, and a row names what it ran with.
import sys
from pathlib import Path

from snakemake.utils import min_version, validate

min_version("9.27")

sys.path[:0] = [str(Path(workflow.basedir, name)) for name in ("kernels", "workflow")]

from narrowbench import pipeline
from narrowbench.report.catalogue import FIGURES, LOCAL_FIGURES, TABLES, TABLE_SUFFIXES

pipeline.use_checkout()

# Snakemake merges the files it is given: a campaign of the command line has to stand instead of the default.
if not workflow.overwrite_configfiles:

    configfile: "configs/main.yaml"


CAMPAIGN = pipeline.read_campaign(config)
validate(config, str(pipeline.SCHEMA))
CAMPAIGN_FILE = pipeline.write_campaign(CAMPAIGN)
RECORD = sorted(map(str, Path("results/record").rglob("*.jsonl")))


include: "workflow/rules/compile.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/collect.smk"
include: "workflow/rules/paper.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.paper.output,
        rules.report.output,
