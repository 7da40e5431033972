# What these rules write is committed. In a fresh clone all of it is made again, since the frame is not there, and comes
# out byte for byte the same: file times, which a clone does not keep, decide nothing.


# One job draws all figures, and one writes all tables and numbers: a process takes longer to start than to draw, and
# what models are fitted to is read and fitted once. The two run side by side: where figures wait, tables go on.
rule figures:
    input:
        "build/frames/record.parquet",
    output:
        expand("figures/{stem}.{suffix}", stem=FIGURES, suffix=["pdf", "png"]),
        report(expand("figures/{stem}.svg", stem=FIGURES), category="Record"),
    log:
        "build/logs/figures.log",
    priority: 1
    params:
        stems=FIGURES,
        digest=pipeline.report_digest(*FIGURES),
    shell:
        "python3 -m narrowbench figure {params.stems} --frame {input} --out figures --processes 4"
        " > {log} 2>&1"


rule tables:
    input:
        "build/frames/record.parquet",
    output:
        expand("paper/tables/{stem}{suffix}", stem=TABLES, suffix=TABLE_SUFFIXES),
        numbers="paper/numbers.typ",
    log:
        "build/logs/tables.log",
    params:
        stems=TABLES,
        digest=pipeline.report_digest("numbers", *TABLES),
    shell:
        "python3 -m narrowbench table {params.stems} --frame {input} --out paper/tables"
        " --numbers {output.numbers} > {log} 2>&1"


rule paper:
    input:
        "paper/narrowgemm.typ",
        "paper/references.bib",
        rules.tables.output.numbers,
        expand("figures/{stem}.svg", stem=FIGURES),
        expand("paper/tables/{stem}.typ", stem=TABLES),
    output:
        report("paper/narrowgemm.pdf", category="Record"),
    log:
        "build/logs/paper.log",
    shell:
        "python3 -m narrowbench paper --out {output} > {log} 2>&1"
