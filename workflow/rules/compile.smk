# Machine code for GPUs that are not here. It takes seconds and depends on nothing of this machine: made anew when sources
# change, never resumed.


rule compile:
    output:
        "build/compiled/{kernel}.jsonl",
    log:
        "build/logs/compile/{kernel}.log",
    params:
        campaign=CAMPAIGN_FILE,
        digest=lambda wildcards: pipeline.compile_digest(wildcards.kernel),
    shell:
        "python3 -m narrowbench compile --kernel {wildcards.kernel} --config {params.campaign} --out {output}"
        " > {log} 2>&1"


# Every config takes an hour: rows are kept in results/raw and resumed, as those that are measured, and the output is a
# stamp. Only `space` asks for it.
rule compile_space:
    output:
        "results/raw/space/{kernel}.done",
    log:
        "build/logs/space/{kernel}.log",
    params:
        campaign=CAMPAIGN_FILE,
        digest=lambda wildcards: pipeline.space_digest(wildcards.kernel),
    shell:
        "python3 -m narrowbench space --kernel {wildcards.kernel} --config {params.campaign} > {log} 2>&1"


rule space:
    input:
        expand("results/raw/space/{kernel}.done", kernel=CAMPAIGN.space_kernels()),
