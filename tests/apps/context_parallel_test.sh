#!/usr/bin/env bash
# Context parallelism from the command line: the example's packed corpus has the losses of one rank, in float64 and
# with the example's types. A dry run reports the bytes that each layer sends. Captured steps have the bits of steps
# without graphs.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_corpus
example=("$repository/examples/context_parallel_tiny.yaml" "--data.data_path=$work/corpus" --run.device=cpu --train.progress=false
  --train.train_iters=6 --train.log_interval=1)
alone=(--run.nproc=1 --parallel.context_parallel_size=1 --parallel.context_parallel_cut=zigzag --parallel.cp_comm_type=p2p
  --parallel.hierarchical_context_parallel_sizes=)

for dtype in fp64 fp32; do
  run 0 train "${example[@]}" "${alone[@]}" --precision.params_dtype=$dtype --train.metrics_file=one.$dtype.jsonl
  run 0 train "${example[@]}" --precision.params_dtype=$dtype --train.metrics_file=four.$dtype.jsonl
done
# Losses below 8. float64: as in commands_test.sh. fp32: a unit in the last place is 5e-7, for sums in another order;
# over 6 steps of Adam differences grow by a factor of some 10.
same_losses one.fp64.jsonl four.fp64.jsonl 1e-12
same_losses one.fp32.jsonl four.fp32.jsonl 2e-5
holds "the example's packed corpus has the losses of one rank with cp 4"
run 0 train "${example[@]}" --precision.params_dtype=fp64 --data.reset_attention_mask=false --train.metrics_file=across.jsonl
! python3 "$apps/metrics.py" compare across.jsonl one.fp64.jsonl 1e-3 > compared || fail "documents that see each other were not seen"
run 0 train "${example[@]}" --run.backend=gloo --precision.params_dtype=fp64 --train.exit_interval=2 --train.metrics_file=gloo.jsonl
head -n "$(wc -l < gloo.jsonl)" one.fp64.jsonl > first.jsonl
same_losses first.jsonl gloo.jsonl 1e-12
holds "over processes too"

run 0 train "${example[@]}" --dry-run
prints '^  attention   p2p \(2 layers\) sends [0-9.]+ KiB forward and [0-9.]+ KiB backward next to'
run 0 train "${example[@]}" --dry-run --json
python3 - << 'PYTHON' || fail "context_parallel of --dry-run --json"
import json
context = json.load(open("out"))["context_parallel"]
kv = 256 * 2 * 2 * 16 * 4  # tokens of a rank, keys and values, groups, head size, fp32
assert [layer["exchange"] for layer in context["layers"]] == ["p2p", "p2p", "all_gather", "a2a+p2p"], context
assert context["layers"][0]["bytes"] == {"forward": 3 * kv, "backward": 6 * kv}, context  # backward sends gradients back too
assert context["layers"][2]["bytes"] == {"forward": 3 * kv, "backward": 6 * kv}, context
PYTHON
holds "a dry run tells what each layer sends"

captured=(--data.reset_attention_mask=false --parallel.context_parallel_cut=zigzag)
run 0 train "${example[@]}" "${captured[@]}" --train.metrics_file=eager.jsonl
for impl in full_iteration local; do
  run 0 train "${example[@]}" "${captured[@]}" --train.cuda_graph_impl=$impl --train.cuda_graph_warmup_steps=2 --train.metrics_file=$impl.jsonl
  same_losses eager.jsonl $impl.jsonl 0
done
run 2 train "${example[@]}" --train.cuda_graph_impl=local
warns 'train.cuda_graph_impl = local: captures one distribution of rows for all steps'
holds "captured steps have the losses of steps without graphs; what documents decide is refused"
