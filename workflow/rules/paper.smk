# What these rules write is committed. In a fresh clone all of it is made again, since the frame is not there, and comes
# out byte for byte the same: file times, which a clone does not keep, decide nothing.


# One job draws all figures and one writes all tables: a process takes longer to start than to draw.
rule figures:
    input:
        "build/frames/record.parquet",
    output:
        expand("figures/{stem}.{suffix}", stem=FIGURES, suffix=["pdf", "png"]),
        report(expand("figures/{stem}.svg", stem=FIGURES), category="Record"),
    log:
        "build/logs/figures.log",
    priority: 1
    threads: 4
    params:
        stems=FIGURES,
        digest=pipeline.report_digest(*FIGURES),
    shell:
        "python3 -m narrowbench figure {params.stems} --frame {input} --out figures --processes {threads}"
        " > {log} 2>&1"


rule tables:
    input:
        "build/frames/record.parquet",
    output:
        expand("paper/tables/{stem}{suffix}", stem=TABLES, suffix=TABLE_SUFFIXES),
    log:
        "build/logs/tables.log",
    params:
        stems=TABLES,
        digest=pipeline.report_digest(*TABLES),
    shell:
        "python3 -m narrowbench table {params.stems} --frame {input} --out paper/tables > {log} 2>&1"


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
        report("paper/narrowgemm.pdf", category="Record"),
    log:
        "build/logs/paper.log",
    shell:
        "python3 -m narrowbench paper --out {output} > {log} 2>&1"
