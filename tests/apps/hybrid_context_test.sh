#!/usr/bin/env bash
# Hybrid context parallelism from the command line: a packed corpus has the losses of one rank, evaluated, resumed and
# over processes. Covers verify, a dry run, the picture of a plan, and rejected combinations.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
example=("$repository/examples/context_parallel_tiny.yaml" "--data.data_path=$work/corpus" --run.device=cpu --train.progress=false
  --train.train_iters=4 --train.log_interval=1 --model.num_layers=2 --parallel.cp_comm_type=p2p
  --parallel.hierarchical_context_parallel_sizes= --precision.params_dtype=fp64 "--data.split=90, 10, 0" --train.eval_interval=2
  --train.eval_iters=1)
alone=(--run.nproc=1 --parallel.context_parallel_size=1 --parallel.context_parallel_cut=zigzag)
hybrid=(--parallel.hybrid_context_parallel=true --parallel.context_parallel_size=2 --parallel.max_seqlen_per_dp_cp_rank=300)

run 0 train "${example[@]}" "${alone[@]}" --train.metrics_file=one.jsonl
run 0 train "${example[@]}" "${hybrid[@]}" --train.metrics_file=four.jsonl --checkpoint.save=four.ck --checkpoint.save_interval=2
same_losses one.jsonl four.jsonl 1e-12  # as in commands_test.sh
holds "documents on as many ranks as they need have the losses of one rank, validated too"

run 0 train "${example[@]}" --checkpoint.load=four.ck --checkpoint.ckpt_step=2 --train.metrics_file=without.jsonl
tail -n "$(wc -l < without.jsonl)" one.jsonl > last.jsonl
same_losses last.jsonl without.jsonl 1e-12
run 0 train "${example[@]}" "${hybrid[@]}" --run.backend=gloo --checkpoint.load=four.ck --checkpoint.ckpt_step=2 --train.metrics_file=gloo.jsonl
same_losses last.jsonl gloo.jsonl 1e-12
holds "a run goes on without, and over processes"

run 0 verify "${example[@]}" "${hybrid[@]}" --train.seq_length=64 --parallel.max_seqlen_per_dp_cp_rank=24
run 0 train "${example[@]}" "${hybrid[@]}" --dry-run
prints '^  attention   p2p \(2 layers\) sends'
run 2 train "${example[@]}" "${hybrid[@]}" --parallel.max_seqlen_per_dp_cp_rank=200
warns 'parallel.max_seqlen_per_dp_cp_rank = 200: is too small for a document of train.seq_length = 1024 tokens on 4 ranks'
run 2 train "${example[@]}" "${hybrid[@]}" --run.nproc=8 --parallel.pipeline_model_parallel_size=2
warns 'parallel.hybrid_context_parallel = true: gives ranks different numbers of microbatches'
holds "it is verified and predicted; what it cannot be combined with is refused"

run 0 schedule --hybrid --ranks 4 --max-seqlen-per-dp-cp-rank 1024 --lengths 137,2041,89,1829 --columns 40
prints '^until the last is done: 1\.[0-9]+ of the mean; 4 documents, [2-4] of them on more than one rank$'
run 0 schedule --hybrid --ranks 4 --max-seqlen-per-dp-cp-rank 1024 --lengths 137,2041,89,1829 --seq-length 2048 --json
python3 - << 'PYTHON' || fail "schedule --hybrid --json"
import json
plan = json.load(open("out"))
count = sum(n for m in plan["microbatches"] for _, n in m["documents"])
assert count == 4096 and len(plan["load"]) == 4, plan
assert {m["sample"] for m in plan["microbatches"]} == {0, 1}, plan
PYTHON
run 2 schedule --hybrid --ranks 4 --max-seqlen-per-dp-cp-rank 1024 --lengths 137,2041 --seq-length 1500
warns 'the last sample is missing 822 of 1500 tokens'
holds "a plan is drawn and printed"
