rule collect_record:
    input:
        RECORD,
    output:
        "build/frames/record.parquet",
    log:
        "build/logs/collect/record.log",
    params:
        digest=pipeline.report_digest("frame"),
    shell:
        "python3 -m narrowbench collect --record results/record --out {output} > {log} 2>&1"


rule collect_all:
    input:
        RECORD,
        pipeline.stamps(CAMPAIGN),
        expand("build/compiled/{kernel}.jsonl", kernel=CAMPAIGN.compiled_kernels()),
    output:
        "build/frames/all.parquet",
    log:
        "build/logs/collect/all.log",
    params:
        digest=pipeline.report_digest("frame"),
    shell:
        "python3 -m narrowbench collect --record results/record --raw results/raw --raw build/compiled"
        " --out {output} > {log} 2>&1"
