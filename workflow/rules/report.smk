# This machine's own run beside the record.


rule local_figures:
    input:
        "build/frames/all.parquet",
    output:
        expand(
            "report/figures/{stem}.{suffix}", stem=LOCAL_FIGURES, suffix=["pdf", "png"]
        ),
        report(
            expand("report/figures/{stem}.svg", stem=LOCAL_FIGURES),
            category="This machine",
        ),
    log:
        "build/logs/local_figures.log",
    params:
        stems=LOCAL_FIGURES,
        digest=pipeline.report_digest(*LOCAL_FIGURES),
    shell:
        "python3 -m narrowbench figure {params.stems} --frame {input} --out report/figures"
        " --processes 4 > {log} 2>&1"


rule report:
    input:
        frame="build/frames/all.parquet",
        figures=expand("report/figures/{stem}.svg", stem=LOCAL_FIGURES),
    output:
        report("report/index.html", category="This machine"),
    log:
        "build/logs/report.log",
    params:
        digest=pipeline.report_digest("page"),
    shell:
        "python3 -m narrowbench report --frame {input.frame} --out {output} > {log} 2>&1"
