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
