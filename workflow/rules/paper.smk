# What these rules write is committed. In a fresh clone all of it is made again, since the frame is not there, and comes
# out byte for byte the same: file times, which a clone does not keep, decide nothing.


rule figure:
    input:
        "build/frames/record.parquet",
    output:
        multiext("figures/{stem}", ".pdf", ".png"),
        report("figures/{stem}.svg", category="Record", labels={"figure": "{stem}"}),
    log:
        "build/logs/figure/{stem}.log",
    wildcard_constraints:
        stem="fig_[a-z0-9_]+",
    params:
        digest=lambda wildcards: pipeline.report_digest(wildcards.stem),
    shell:
        "python3 -m narrowbench figure {wildcards.stem} --frame {input} --out figures > {log} 2>&1"


rule table:
    input:
        "build/frames/record.parquet",
    output:
        multiext("paper/tables/{stem}", ".tex", ".csv", ".md", ".typ"),
    log:
        "build/logs/table/{stem}.log",
    wildcard_constraints:
        stem="tab_[a-z0-9_]+",
    params:
        digest=lambda wildcards: pipeline.report_digest(wildcards.stem),
    shell:
        "python3 -m narrowbench table {wildcards.stem} --frame {input} --out paper/tables > {log} 2>&1"


rule numbers:
    input:
        "build/frames/record.parquet",
    output:
        "paper/numbers.typ",
    log:
        "build/logs/numbers.log",
    params:
        digest=lambda wildcards: pipeline.report_digest("numbers"),
    shell:
        "python3 -m narrowbench numbers --frame {input} --out {output} > {log} 2>&1"


rule paper:
    input:
        "paper/narrowgemm.typ",
        "paper/references.bib",
        rules.numbers.output,
        expand("figures/{stem}.svg", stem=FIGURES),
        expand("paper/tables/{stem}.typ", stem=TABLES),
    output:
        report(
            "paper/narrowgemm.pdf", category="Record", labels={"figure": "the paper"}
        ),
    log:
        "build/logs/paper.log",
    shell:
        "python3 -m narrowbench paper --out {output} > {log} 2>&1"
