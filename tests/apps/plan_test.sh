#!/usr/bin/env bash
# metroplex plan: the price of a run, the search over layouts, and errors.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cat > run.yaml <<'YAML'
model: {family: llama, num_layers: 8, hidden_size: 512, ffn_hidden_size: 1408, num_attention_heads: 8, vocab_size: 4096}
precision: {params_dtype: bf16}
train: {seq_length: 512, micro_batch_size: 1, global_batch_size: 32, train_iters: 100, max_position_embeddings: 512}
data: {mock_data: true}
YAML
sed -i 's/, max_position_embeddings: 512}/}/; s/vocab_size: 4096/vocab_size: 4096, max_position_embeddings: 512/' run.yaml
json() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }

echo "A plan"
ls > before
run 0 plan run.yaml --gpus 8 --cluster h100 --pp 2
for word in "h100, 8 ranks" "memory +[0-9.]+ MiB .* of 79.6 GiB" "step +[0-9.]+ (ms|s) \+- 15 %" "tokens/s" "MFU" "GPU hours" "forward" \
  "waits for other stages"; do prints "$word"; done
[ "$(ls | grep -v '^before$')" = "$(grep -v '^before$' before)" ] && holds "plan writes nothing"
run 0 plan run.yaml --gpus 8 --cluster h100 --pp 2 --json --trace trace.json
cp out plan.json
[ "$(json plan.json 'len(d["stages"]), d["ranks"], 0 < d["mfu"] < 1')" = "(2, 8, True)" ] && holds "the JSON has a stage per pipeline rank"
# All parts of a stage add up to the step: times have 15 digits.
[ "$(json plan.json 'all(abs(sum(v for k, v in s.items() if k != "exposed") + sum(s.get("exposed", {}).values()) - d["step_s"]) < 1e-9 for s in d["stages"])')" = True ] &&
  holds "the parts add up to the step"
[ "$(json trace.json 'sum(e["ph"] == "X" and e["name"].startswith("forward") for e in d["traceEvents"])')" = 16 ] &&
  holds "the trace has 8 forwards per stage"
run 0 plan run.yaml --gpus 8 --pp 2 --failures 5 --checkpoint.save_interval=100 --checkpoint.save=ck
prints "goodput 9[0-9.]+ %|goodput 100.0 %"

echo "A search"
run 0 plan run.yaml --gpus 4 --cluster h100 --search --output best.yaml
prints "layouts in [0-9.]+ s: .* refused, .* too large, .* simulated"
prints "tp [0-9]"
run 0 plan best.yaml --gpus 4 --cluster h100 --json
cp out best.json
run 0 plan run.yaml --gpus 4 --cluster h100 --search --json
[ "$(json out 'd["results"][0]["step_s"]')" = "$(json best.json 'd["step_s"]')" ] && holds "the written file has the price of the first result"
run 0 train best.yaml --nproc 4 --run.device=cpu --train.train_iters=1 --train.eval_iters=0 --memory.check_fit=off --dry-run
holds "the first result is a configuration for train"

echo "Errors"
run 2 plan run.yaml --gpus 0
warns "gpus"
run 2 plan run.yaml --gpus 4 --cluster h1000
warns "no machine 'h1000': give one of a100, b200, cpu"
run 2 plan run.yaml --gpus 4 --imbalance 0.5
warns "imbalance = 0.5: must be at least 1"
printf 'device: {memory_bytes: x}\n' > bad.yaml
run 2 plan run.yaml --gpus 4 --cluster bad.yaml
warns "bad.yaml: device.memory_bytes = x: must be a finite number"
run 2 plan run.yaml --gpus 3 --pp 2
warns "pipeline_model_parallel_size"
