# Rows are appended to results/raw/<device>/<kernel>/<suite>.jsonl, which no rule declares as its output: Snakemake
# deletes the outputs of a job before it runs it again, and hours of measurements must outlive an edit of the code. The
# output is a stamp, set by the command when it has gone through its cases; a job that runs again measures what is
# missing, and nothing else.


rule roofs:
    output:
        "results/raw/{device}/roofs.done",
    log:
        "build/logs/measure/{device}/roofs.log",
    priority: 1
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        campaign=CAMPAIGN_FILE,
    shell:
        "python3 -m narrowbench measure --device {wildcards.device} --roofs --config {params.campaign} 2>&1 | tee {log}"


rule measure:
    output:
        "results/raw/{device}/{kernel}/{suite}.done",
    log:
        "build/logs/measure/{device}/{kernel}/{suite}.log",
    threads: workflow.cores
    resources:
        gpu=1,
    params:
        campaign=CAMPAIGN_FILE,
        digest=lambda wildcards: pipeline.job_digest(wildcards.kernel, wildcards.suite),
    shell:
        "python3 -m narrowbench measure --device {wildcards.device} --kernel {wildcards.kernel}"
        " --suite {wildcards.suite} --config {params.campaign} 2>&1 | tee {log}"
