# This machine's own run beside the record.


rule local_figure:
    input:
        "build/frames/all.parquet",
    output:
        multiext("report/figures/{stem}", ".pdf", ".png"),
        report(
            "report/figures/{stem}.svg",
            category="This machine",
            labels={"figure": "{stem}"},
        ),
    log:
        "build/logs/figure/{stem}.log",
    wildcard_constraints:
        stem="local_[a-z0-9_]+",
    params:
        digest=lambda wildcards: pipeline.report_digest(wildcards.stem),
    shell:
        "python3 -m narrowbench figure {wildcards.stem} --frame {input} --out report/figures > {log} 2>&1"


rule report:
    input:
        frame="build/frames/all.parquet",
        figures=expand("report/figures/{stem}.svg", stem=LOCAL_FIGURES),
    output:
        report(
            "report/index.html",
            category="This machine",
            labels={"figure": "explorer, and all on one page"},
        ),
    log:
        "build/logs/report.log",
    shell:
        "python3 -m narrowbench report --frame {input.frame} --out {output} > {log} 2>&1"
