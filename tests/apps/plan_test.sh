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
for word in "h100, 8 ranks" "memory +[0-9.]+ MiB .* of 79.6 GiB" "step +[0-9.]+ (ms|s) \+- [0-9]+ %" "tokens/s" "MFU" "GPU hours" "forward" \
  "waits for other stages"; do prints "$word"; done
[ "$(ls | grep -vxE 'before|out|err')" = "$(grep -vxE 'before|out|err' before)" ]
holds "plan writes nothing"
run 0 plan run.yaml --gpus 8 --cluster h100 --pp 2 --json --trace trace.json --svg step.svg
cp out plan.json
[ "$(json plan.json 'len(d["stages"]), d["ranks"], 0 < d["mfu"] < 1')" = "(2, 8, True)" ]
holds "the JSON has a stage per pipeline rank"
# All parts of a stage add up to the step: sums of at most 1,000 times, 1,000 x 2^-53. JSON has all digits.
[ "$(json plan.json 'all(abs(sum(v for k, v in s.items() if k != "exposed") + sum(s.get("exposed", {}).values()) - d["step_s"]) < 1.2e-13 * d["step_s"] for s in d["stages"])')" = True ]
holds "the parts add up to the step"
[ "$(json trace.json 'sum(e["ph"] == "X" and e["name"].startswith("forward") for e in d["traceEvents"])')" = 16 ]
holds "the trace has 8 forwards per stage"
# Bytes / 2^20 are exact.
[ "$(json trace.json "max(e['args']['MiB'] for e in d['traceEvents'] if e['ph'] == 'C') * 2**20 == $(json plan.json 'd["memory"]["need"]')")" = True ]
holds "the highest memory of the trace is the predicted peak"
[ "$(python3 -c 'import xml.etree.ElementTree as x; print(sum("rect" in e.tag for e in x.parse("step.svg").iter()) > 2 * 16)')" = True ]
holds "the picture has the forwards and backwards of both stages"
run 0 plan run.yaml --gpus 8 --pp 2 --failures 5 --checkpoint.save_interval=100 --checkpoint.save=ck
prints "goodput 9[0-9.]+ %|goodput 100.0 %"

echo "A search"
run 0 plan run.yaml --gpus 4 --cluster h100 --search --output best.yaml
prints "layouts in [0-9.]+ s: .* refused, .* too large, .* simulated"
prints "tp [0-9]"
prints "step time in s .up., memory in MiB .right."
run 0 plan best.yaml --gpus 4 --cluster h100 --json
cp out best.json
run 0 plan run.yaml --gpus 4 --cluster h100 --search --json
[ "$(json out 'd["results"][0]["step_s"]')" = "$(json best.json 'd["step_s"]')" ]
holds "the written file has the price of the first result"
run 0 train best.yaml --nproc 4 --run.device=cpu --train.train_iters=1 --train.eval_iters=0 --memory.check_fit=off --dry-run
holds "the first result is a configuration for train"

echo "Further settings"
cat > experts.yaml <<'YAML'
model: {family: mixtral, num_layers: 1, hidden_size: 512, ffn_hidden_size: 2048, num_attention_heads: 1, vocab_size: 128, max_position_embeddings: 1023, num_moe_experts: 8, moe_router_topk: 2}
precision: {params_dtype: bf16}
train: {seq_length: 1023, micro_batch_size: 1, global_batch_size: 8, train_iters: 1, eval_iters: 0}
data: {mock_data: true}
YAML
run 0 plan experts.yaml --gpus 8 --cluster h100 --search --imbalance 8 --memory.device_memory_gib=0.2 --output experts_best.yaml --json
[ "$(json out '"model.moe_enable_echo=true" in d["results"][0]["settings"]')" = True ]
holds "replicas balance experts"
grep -q "moe_num_echo_experts: [1-9]" experts_best.yaml
holds "the file has the replica slots"
run 0 train experts_best.yaml --nproc 8 --run.device=cpu --memory.check_fit=off
prints "iteration +1/"
run 0 train experts.yaml --nproc 1 --run.device=cpu --memory.check_fit=off --train.expert_trace_file=loads.jsonl
run 0 plan experts.yaml --gpus 8 --ep 8 --cluster h100 --json
cp out even.json
run 0 plan experts.yaml --gpus 8 --ep 8 --cluster h100 --json --expert-trace loads.jsonl
[ "$(json out "d['step_s'] > $(json even.json 'd["step_s"]')")" = True ]
holds "recorded loads slow a step down"
run 0 plan experts.yaml --gpus 8 --ep 8 --cluster h100 --json --trace turns.json --train.global_batch_size=32 --parallel.overlap_moe_expert_parallel_comm=true
cp out turns_plan.json
# In nanoseconds, which starts and ends are rounded to before their difference is taken.
turns="sorted((round(1000 * e['ts']), round(1000 * e['ts']) + round(1000 * e['dur']), e['name']) for e in d['traceEvents'] if e['ph'] == 'X' and e['tid'] == 0)"
[ "$(json turns.json "all(b[0] >= a[1] for a, b in zip(($turns), ($turns)[1:]))")" = True ]
holds "the turns of a trace do not overlap"
[ "$(json turns.json "sum(e['ph'] == 'X' and e['name'].startswith('forward') for e in d['traceEvents']) > 4")" = True ]
holds "a forward in a pair has several turns"
[ "$(json turns.json "max(e['args']['MiB'] for e in d['traceEvents'] if e['ph'] == 'C') * 2**20 == $(json turns_plan.json 'd["memory"]["need"]')")" = True ]
holds "the highest memory of pairs is the predicted peak"
[ "$(json turns.json "(lambda times: times == sorted(times))([e['ts'] for e in d['traceEvents'] if e['ph'] == 'C'])")" = True ]
holds "the memory of an action is drawn within its turns"
run 2 plan experts.yaml --gpus 8 --expert-trace loads.jsonl --imbalance 2
warns "expert-trace replaces --imbalance"
run 2 plan run.yaml --gpus 8 --expert-trace loads.jsonl
warns "expert-trace: num_experts = 8: must be model.num_moe_experts .0."
run 2 plan experts.yaml --gpus 8 --model.num_layers=2 --expert-trace loads.jsonl
warns "expert-trace: 1 layers: must be the layers with experts .2."
run 3 plan experts.yaml --gpus 8 --expert-trace run.yaml
warns "run.yaml"
run 0 plan run.yaml --gpus 4 --cluster h100 --search --json --memory.device_memory_gib=0.09
[ "$(json out 'any(r["offloads_activations"] or r["offloads_optimizer"] for r in d["results"])')" = True ]
holds "offload lets more layouts fit"

run 0 plan run.yaml --gpus 4 --run.backend=threads --search --output shared.yaml
run 0 train shared.yaml --dry-run --device-memory 80GiB
holds "a plan for GPUs has one for each rank, also if the file says threads"
run 0 plan run.yaml --gpus 2 --pp 2 --cluster cpu --json
cp out two.json
run 0 plan run.yaml --gpus 4 --pp 2 --cluster cpu --json
[ "$(json out "d['memory']['need'] > 1.5 * $(json two.json 'd["memory"]["need"]')")" = True ]
holds "the ranks of a CPU share its memory"
run 0 train run.yaml --nproc 4 --pp 2 --run.device=cpu --memory.check_fit=off --dry-run --json
cp out dry.json
run 0 plan run.yaml --gpus 4 --pp 2 --cluster cpu --json
[ "$(json out 'd["memory"]["need"]')" = "$(json dry.json 'd["memory"]["need"]')" ]
holds "plan and a dry run predict the same bytes on a CPU"
run 0 plan run.yaml --gpus 4 --cluster h100 --search --pp 2 --vpp 2 --parallel.overlap_p2p_comm=true --parallel.num_distributed_optimizer_instances=2
holds "keys of the layout of the file do not restrict the search"

echo "Errors"
run 2 plan run.yaml --gpus 0
warns "gpus"
run 2 plan run.yaml --gpus 4 --cluster h1000
warns "no machine 'h1000': must be a built-in name .a100, b200, cpu"
run 2 plan experts.yaml --gpus 4 --imbalance 0.5
warns "imbalance = 0.5: must be at least 1"
printf 'device: {memory_bytes: x}\n' > bad.yaml
run 2 plan run.yaml --gpus 4 --cluster bad.yaml
warns "bad.yaml: device.memory_bytes = x: must be a finite number"
run 2 plan run.yaml --gpus 4 --imbalance 2
warns "the model has no experts"
run 2 plan run.yaml --gpus 4 --output best.yaml
warns "output is the result of --search"
run 2 plan run.yaml --gpus 4 --search --svg step.svg
warns "show one layout"
run 2 plan run.yaml --gpus 1.5
warns "gpus '1.5' is not an integer"
run 3 plan run.yaml --gpus 4 --search --output nowhere/best.yaml
warns "output = nowhere/best.yaml: its folder does not exist"
[ ! -s out ]
holds "an output without a directory is refused before the search"
run 3 calibrate --output nowhere/machine.yaml
[ ! -s out ]
holds "calibrate too"
run 2 plan run.yaml --gpus 7 --search
warns "no layout of this model uses 7 ranks: train.global_batch_size"
run 2 plan run.yaml --gpus 4 --search --parallel.expert_ranks_per_node=2
warns "expert_ranks_per_node"
run 2 plan run.yaml --gpus 3 --pp 2
warns "pipeline_model_parallel_size"
cp run.yaml self.yaml
for output in output trace svg; do
  run 2 plan self.yaml --gpus 4 --search --$output ./self.yaml
  warns "--$output = ./self.yaml: must not be an input of the command; choose another path"
done
cmp -s run.yaml self.yaml
holds "plan keeps its configuration"
run 2 plan run.yaml --gpus 4 --trace both --svg=./both
warns "--svg = ./both: must differ from --trace; choose another path"
run 2 plan run.yaml --gpus 4 --search --output both --svg both
warns "--svg = both: must differ from --output; choose another path"
[ ! -e both ]
holds "plan writes no file that two options name"

echo "A run with train.machine"
train=(train "${tiny[@]}" "${mock[@]}" --nproc 2)
run 0 "${train[@]}" --train.machine=cpu --train.metrics_file=machine.jsonl
prints "predicted / measured step of rank [01] \(ms\): forward [0-9.]+ / [0-9.]+ \| backward .* \| update .* \| communication .* \| waits .* \| step [0-9.]+ / [0-9.]+$"
warns "train.machine = cpu: iteration 3, rank [01]: step [0-9.]+ ms, predicted [0-9.]+ ms \+- 50 %; the largest difference has [a-z]+: [0-9.]+ ms, predicted [0-9.]+ ms"
run 0 report machine.jsonl --output page.html
grep -q '"update"' page.html || fail "the page lacks the parts of a step"
holds "the page has the parts of a step"
for machine in h1000 bad.yaml; do
  run 2 "${train[@]}" --train.machine=$machine --train.metrics_file=none.jsonl --checkpoint.save=none
  warns "train.machine = $machine: .*; metroplex calibrate --output FILE writes a file for this machine"
  [ ! -e none.jsonl ]
  [ ! -e none ]
  holds "a run with a wrong machine writes nothing"
  run 2 "${train[@]}" --train.machine=$machine --dry-run
done
