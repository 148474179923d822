#!/usr/bin/env bash
# Training on chats, and chatting with the result: the commands of docs/finetuning.md as printed, on a tiny directory;
# layouts, resuming, and a dialog.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
vectors=$repository/tests/vectors

# A directory with a chat template and an untrained model.
mkdir tok && cp "$vectors"/tokenizers/qwen2/tokenizer*.json tok/
cat > tok/chat_template.jinja <<'JINJA'
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}
{{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
JINJA
small="--run.seed=7 --model.family=llama --model.num_layers=4 --model.hidden_size=64 --model.num_attention_heads=4
  --model.ffn_hidden_size=128 --model.max_position_embeddings=256 --run.device=cpu --train.progress=false"
run 0 train $small --data.tokenizer_type=bpe --data.tokenizer_model=tok --data.mock_data=true --train.seq_length=32 --train.train_iters=1 \
  --train.eval_iters=0 --optim.lr=1e-5 --checkpoint.save=blank --checkpoint.export_hf base
cmp tok/chat_template.jinja base/chat_template.jinja && held || fail "the directory has no chat template"
python3 - <<'PYTHON'
import json
colours = {"grass": "green", "snow": "white", "coal": "black", "blood": "red", "the sky": "blue", "a lemon": "yellow"}
with open("chats.jsonl", "w") as out:
    for turn in range(40):
        names = list(colours)
        names = names[turn % 6:] + names[:turn % 6]
        messages = []
        for name in names[:1 + turn % 3]:
            messages += [{"role": "user", "content": f"Which colour has {name}?"}, {"role": "assistant", "content": f"It is {colours[name]}."}]
        out.write(json.dumps({"messages": messages}) + "\n")
    out.write(json.dumps({"messages": [{"role": "user", "content": "nobody answers"}]}) + "\n")
    out.write(json.dumps({"conversations": [{"from": "human", "value": "Speak! " * 120}, {"from": "gpt", "value": "No."}]}) + "\n")
with open("prompts.jsonl", "w") as out:
    out.write('Which\n"Which colour has snow?"\n\n{"prompt": "It is", "id": 7}\n')
    for name in ("coal", "the sky", "blood"):
        out.write(json.dumps({"messages": [{"role": "user", "content": f"Which colour has {name}?"}]}) + "\n")
PYTHON
mkdir text
for i in $(seq 60); do printf 'Document %d says: grass is green, snow is white, %s.\n' "$i" "$(seq -s ' ' 40)" > "text/$i.txt"; done

# The commands of the page, in order.
metroplex() { "$metroplex" "$@"; }
awk '/^    metroplex /{on = 1} on{sub(/^ +/, ""); print; if ($0 !~ /\\$/) on = 0}' "$repository/docs/finetuning.md" > printed
[ "$(grep -c '^metroplex' printed)" = 11 ] || fail "the page prints other commands: $(cat printed)"
export -f metroplex
export metroplex
step=0
while IFS= read -r line || [ -n "$line" ]; do
  command=${command:-}${command:+ }${line%\\}
  case $line in *\\) continue ;; esac
  code=0
  step=$((step + 1))
  timeout -k 5 200 bash -c "$command" > out 2> err < /dev/null || code=$?
  [ $code = 0 ] || fail "'$command' ends with $code"
  cp out printed_$step
  held
  command=
done < printed
grep -qE 'chats.bin and .idx: 40 documents, [0-9]+ tokens, [0-9]+ of them learned \(1 chats of more than 129 tokens cut\) \(2 chats with nothing to learn left out\)' printed_3 && held ||
  fail "preprocess --chat says $(cat printed_3)"
[ "$(cat printed_5)" = "It is green." ] && held || fail "what was learned is not said: $(cat printed_5)"
python3 - printed_6 <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert [list(line) for line in lines] == [["prompt", "text"], ["prompt", "text"], ["prompt", "id", "text"]] + [["messages"]] * 3, lines
answers = [line["messages"][-1] for line in lines[3:]]
assert answers == [{"role": "assistant", "content": f"It is {colour}."} for colour in ("black", "blue", "red")], answers
PYTHON
holds "the commands of the page: the model says what it was taught, alone and in batches on tp 2"

# Greedy tokens depend neither on the batch nor on the layout.
prompts=(generate base_chats --prompts prompts.jsonl --max-new-tokens 16 --temperature 0)
for options in "--batch-size 1" "--batch-size 6" "--batch-size 3 --nproc 4 --tp 2 --pp 2"; do
  run 0 "${prompts[@]}" $options
  cmp -s printed_6 out && held || fail "--prompts with $options gives $(cat out)"
done
holds "prompts of other lengths, one by one and in batches, on one rank and on tp 2 x pp 2"

# The same losses in any layout, and after a stop and resume.
sft=(train --model.from base --data.data_path=chats --data.split=100,0,0 --data.reset_position_ids=true --data.reset_attention_mask=true
  --train.seq_length=128 --train.global_batch_size=4 --train.train_iters=6 --optim.lr=0.005 --train.eval_iters=0 --run.device=cpu
  --train.progress=false --train.log_interval=1)
run 0 "${sft[@]}" --train.metrics_file=one.jsonl --checkpoint.save=one --checkpoint.save_interval=3
prints 'data: chats, [0-9]+ tokens to train on, from chats: [1-9][0-9]? % of them learned, '
# fp32 losses near 7 round by 4e-7. After six updates, sums in another order have moved the weights by as many units:
# 1e-4 is 200 of them.
for options in "--nproc 4 --tp 2 --pp 2" "--nproc 2 --cp 2" "--nproc 4 --parallel.data_parallel_sharding_strategy=optim_grads_params"; do
  run 0 "${sft[@]}" $options --train.metrics_file=other.jsonl
  same_losses one.jsonl other.jsonl 1e-4
  rm other.jsonl
done
cp -r one half && rm -r half/iter_0000006 && printf 'iter_0000003\n' > half/latest
run 0 "${sft[@]}" --checkpoint.save=half --checkpoint.load=half --train.metrics_file=rest.jsonl
same_end one half
run 0 verify --model.from base --data.reset_position_ids=true --data.reset_attention_mask=true --train.seq_length=32 --nproc 2 --tp 2
holds "chats train alike on tp 2 x pp 2, cp 2 and dp 4 with ZeRO; resumed to the same bytes; verified"

# Datasets of other programs: conversions, unused data and turns without an end are counted.
mkdir other && cp "$vectors"/tokenizers/qwen2/tokenizer*.json other/
cat > other/chat_template.jinja <<'JINJA'
{% for t in tools or [] %}{{ t | tojson }}
{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.content is string else '' }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}
JINJA
cat > other.jsonl <<'LINES'
{"system": "Talk.", "mood": "good", "conversations": [{"from": "human", "value": "e\u0301"}, {"from": "gpt", "value": "1\u00c32 \u09df"}]}
{"tools": "[{\"name\": \"f\"}]", "messages": [{"role": "user", "content": null, "name": "Ada"}, {"role": "assistant", "content": "BAD", "weight": 0}, {"role": "assistant", "content": "good", "tool_calls": null}]}
{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "lost"}]}]}
LINES
run 0 preprocess --chat --input other.jsonl --tokenizer-model other --output-prefix other_chats
for line in '1 chats have a "system" string' '1 chats have tools as a JSON string' '1 chats have the key "mood" next to the messages' \
  '1 chats have messages with the key "name", which the template' 'the text of 1 messages with the role assistant'; do
  warns "^warning: .*$line"
done
if grep -q 'does not end the turn' err; then fail "complete turns are reported: $(cat err)"; fi
echo '{% for m in messages %}{{ m.role }}{% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% endif %}<|im_end|>{% endfor %}' > open.jinja
head -1 other.jsonl > first.jsonl
run 0 preprocess --chat --input first.jsonl --tokenizer-model other --chat-template open.jinja --output-prefix open_chats
warns '^warning: in 1 of 1 turns the last learned token does not end the turn'
printf '%s\n' '{"tools": "f(x)", "messages": [{"role": "user", "content": "a"}]}' > bad_tools.jsonl
run 3 preprocess --chat --input bad_tools.jsonl --tokenizer-model other --output-prefix no
warns "'bad_tools.jsonl' line 1: \"tools\" = .*must be a list of objects"
holds "chats of other programs are read with counts; data that is not used is named"

# A template that removes the reasoning of earlier turns: each turn is learned in a sequence that ends with it. The 40
# chats of chats.jsonl with answers have 79 answers.
cat > strips.jinja <<'JINJA'
{% for m in messages %}<|im_start|>{{ m.role }}
{% if loop.last and m.role == 'assistant' %}<think>
</think>
{% endif %}{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
JINJA
strips=(preprocess --chat --input chats.jsonl --tokenizer-model other --chat-template strips.jinja --seq-length 128)
run 3 "${strips[@]}" --output-prefix no
warns "'chats.jsonl' line 2: .*renders message 2 .*learn each turn in a sequence that ends with it .--learn each."
run 0 "${strips[@]}" --learn each --output-prefix each_turn
prints 'each_turn.bin and .idx: 79 documents from 40 chats, [0-9]+ tokens, [0-9]+ of them learned \(1 sequences of more than 129 tokens cut\) \(2 sequences with nothing to learn left out\);'
if grep -q warning err; then fail "complete turns are reported: $(cat err)"; fi
run 0 "${strips[@]}" --learn last --output-prefix last_turn
prints 'last_turn.bin and .idx: 40 documents, [0-9]+ tokens'
run 0 "${sft[@]}" --data.data_path=each_turn --train.train_iters=1
prints 'data: each_turn, [0-9]+ tokens to train on, from chats: [1-9][0-9]? % of them learned, '
holds "a template that changes earlier turns is learned turn by turn, with true counts"

# Error messages suggest a fix.
run 2 "${sft[@]}" --data.reset_attention_mask=false
warns 'data.reset_attention_mask = true'
run 3 "${sft[@]}" --train.seq_length=16
warns 'chats .train. have more tokens than the maximum of a sample, 17.*--seq-length 16 --long cut'
run 3 preprocess --chat --input text --tokenizer-model base --output-prefix no
warns "'text/1.txt' line 1: is not JSON"
run 2 preprocess --chat --input chats.jsonl --tokenizer-type bytes --output-prefix no
warns 'no chat template.*--chat-template FILE'
printf '{%% for m in messages %%}\n{{ m.content | urlize }}{%% endfor %%}' > wrong.jinja
run 3 preprocess --chat --input chats.jsonl --tokenizer-type bytes --chat-template wrong.jinja --output-prefix no
warns "line 1: wrong.jinja, line 2: the filter 'urlize' is not supported"
printf '{{ messages[-1].content }}' > rewrites.jinja
run 3 preprocess --chat --input chats.jsonl --tokenizer-type bytes --chat-template rewrites.jinja --output-prefix no
warns 'line 1: .*no .% generation %. blocks'
[ ! -e no.idx ] && held || fail "a refused dataset was written"
cp -r base plain && printf '{%% include "other" %%}' > plain/chat_template.jinja
run 0 generate plain --prompt "It is" --max-new-tokens 2
run 2 preprocess --input text --tokenizer-model base --long drop --output-prefix no
warns '\-\-long require --chat'
rm plain/chat_template.jinja
run 2 generate plain --chat
warns '--chat: .*no chat template'
printf '{"messages": 3}\n' > wrong.jsonl
run 3 generate base_chats --prompts wrong.jsonl
warns 'wrong.jsonl line 1'
python3 - <<'PYTHON'
deep = "[" * 100000 + "]" * 100000
open("deep.jsonl", "w").write('{"messages": [{"role": "user", "content": "a"}]}\n{"messages":' + deep + "}\n")
open("parts.jsonl", "w").write('{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b"}]}\n')
open("long.jsonl", "w").write('"It is"\n"' + "Which colour has snow? " * 200 + '"\n')
open("latin.jsonl", "wb").write(b"It is\ncaf\xe9\n")
open("number.jsonl", "w").write('{"prompt": "It is", "id": 12345678901234567890123}\n')
open("marked.jsonl", "wb").write(b'\xef\xbb\xbf"It is"\r\n')
PYTHON
tokenized=(preprocess --chat --tokenizer-model base --output-prefix no)
run 3 "${tokenized[@]}" --input deep.jsonl
warns "'deep.jsonl' line 2: is JSON nested deeper than 120 levels"
run 3 generate base_chats --prompts deep.jsonl
warns 'deep.jsonl line 2: is JSON nested deeper than 120 levels'
run 2 "${tokenized[@]}" --input chats.jsonl --chat-variable "x=$(printf '[%.0s' $(seq 60000))$(printf ']%.0s' $(seq 60000))"
warns "variable 'x': is JSON nested deeper than 120 levels"
for variable in messages=3 add_generation_prompt=true bos_token=a 'a b=1'; do
  run 2 "${tokenized[@]}" --input chats.jsonl --chat-variable "$variable"
  warns "'${variable%=*}' is (set by the chat or its tokenizer|not a valid variable name)"
done
run 3 "${tokenized[@]}" --input parts.jsonl
warns "'parts.jsonl' line 1: .*message 1, with the role user, has a list of parts as its content; .*one string"
run 3 generate base_chats --prompts parts.jsonl
warns 'parts.jsonl line 1: .*message 1, with the role user, has a list of parts'
run 3 "${tokenized[@]}" --input chats.jsonl --json-key body
warns '--json-key: applies to text'
run 3 "${tokenized[@]}" --input chats.jsonl --split-documents
warns '--split-documents: applies to text'
run 3 "${tokenized[@]}" --input chats.jsonl --seq-length 2 --long drop
warns 'none of the 42 chats is left; 42 with more than 3 tokens were left out: pass a larger --seq-length'
run 3 generate base_chats --prompts long.jsonl
warns 'long.jsonl line 2: a prompt of [0-9]+ tokens and 1 more is longer than the model.s context of 256'
[ ! -s out ] && held || fail "prompts were continued before all were looked at: $(cat out)"
run 3 generate base_chats --prompts latin.jsonl
warns 'latin.jsonl line 2: .*UTF-8.* 4$'
run 3 generate base_chats --prompts number.jsonl
warns 'number.jsonl line 1: the number 12345678901234567890123 does not fit in 64 bits'
run 0 generate base_chats --prompts marked.jsonl --max-new-tokens 1
prints '^[{]"prompt":"It is","text":'
run 2 generate base_chats --model.from base --prompt a
warns 'generate base_chats and --model.from both name a model'
run 2 generate base_chats --load=one --prompt a
warns 'generate base_chats and --load=one both name a model'
run 2 generate base_chats --ckpt-step 3 --prompt a
warns 'is a Hugging Face directory, which has one state'
run 2 generate base_chats --system 'Be nice.' --prompt a
warns '--system .*; give --chat'
run 3 "${sft[@]}" --data.data_path=chats_loss_mask
warns "'chats_loss_mask' is the loss mask of chats, .* use the dataset 'chats'"
holds "wrong chats, templates and settings are refused by file and line"

# A dialog: piped, on one rank and on four, and on a terminal.
printf 'Which colour has coal?\n\n  \n/system Be nice.\n/reset\n/nope\nWhich colour has blood?\n/exit\nWhich colour has snow?\n' > typed
for options in "" "--nproc 4 --tp 2 --pp 2"; do
  "$metroplex" generate base_chats --chat --temperature 0 --system "" $options < typed > out 2> err || fail "a dialog ended with $?"
  grep -q '^It is black.$' out && grep -q '(unknown command /nope)' out && ! grep -q white out && held || fail "a dialog $options: $(cat out)"
done
printf 'Which colour has coal?\r\n/exit\r\nWhich colour has snow?\r\n' |
  "$metroplex" generate base_chats --chat --temperature 0 > out 2> err || fail "a dialog with carriage returns ended with $?"
grep -q '^It is black.$' out && ! grep -qE 'white|unknown command' out && held || fail "a dialog with carriage returns: $(cat out)"
printf '{%% if 0 %%}{%% endif %%}' > silent.jinja
printf 'Hello\n' | "$metroplex" generate base_chats --chat --chat-template silent.jinja > out 2> err || fail "a silent template ended with $?"
prints 'the chat template produces no text for this chat'
python3 -c 'print("Which colour has snow? " * 200)' | "$metroplex" generate base_chats --chat --temperature 0 > out 2> err || fail "a long message ended it"
prints 'tokens, .* 256; /reset '
code=0
"$metroplex" generate base_chats --chat --temperature 0 < typed > /dev/full 2> err || code=$?
[ $code = 3 ] && held || fail "a dialog into /dev/full ended with $code"
cp -r base wide && sed -i 's/"max_position_embeddings": *256/"max_position_embeddings": 20000/' wide/config.json
grep -q 20000 wide/config.json && held || fail "the context is $(cat wide/config.json)"
python3 - "$metroplex" <<'PYTHON'
import os, pty, select, signal, sys, time
def dialog(*steps, options=("base_chats", "--temperature", "0")):
    """Types each answer when its cue has been shown; returns all that was shown, and how it ended."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.argv[1], [sys.argv[1], "generate", *options])
    shown, at, end = b"", 0, time.time() + 80
    steps = list(steps)
    while time.time() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                got = os.read(fd, 4096)
            except OSError:
                got = b""
            if not got:
                break
            shown += got
        if steps and steps[0][0] in shown[at:]:
            at = len(shown)
            os.write(fd, steps.pop(0)[1])
    else:
        os.kill(pid, signal.SIGKILL)
    return shown.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
shown, code = dialog((b"> ", b"Which colour has snow?\n"), (b"> ", b"\x04"))
assert code == 0 and "It is white.\r\n" in shown and "/reset" in shown, (code, shown)
shown, code = dialog((b"> ", b"Which\x03"))
assert code == 0, (code, shown)
# Each process and their launcher receive the signal: it ends the answer, then the dialog.
endless = ("wide", "--max-new-tokens", "100000", "--temperature", "3", "--nproc", "2", "--tp", "2", "--backend", "gloo")
shown, code = dialog((b"> ", b"Hello\n"), (b"Hello\r\n", b""), (b" ", b"\x03"), (b"> ", b"/reset\n"), (b"chat)\r\n> ", b"\x03"), options=endless)
assert code == 0 and "(a new chat)" in shown and "SIGINT" not in shown, (code, shown)
PYTHON
holds "a dialog by pipe, on tp 2 x pp 2 and on a terminal: commands, empty lines, a full chat, ctrl-C, ctrl-D"
