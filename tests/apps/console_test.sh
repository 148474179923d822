#!/usr/bin/env bash
# The console escapes control characters in text from files, tokenizers and the network.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$apps/running.sh"
evil=$'\x1b]0;owned\x07\x9b2J\xe2\x80\xae'
seen='\u001b]0;owned\u0007\x9b2J\u202e'

# escapes STREAM: STREAM (out or err) has the text escaped, and no control character except tab and newline.
escapes() {
  grep -qF -- "$seen" "$1" || fail "$1 lacks the escaped text: $(cat -v "$1")"
  python3 - "$1" << 'PYTHON' || fail "$1 has control characters: $(cat -v "$1")"
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()  # raises if it is not UTF-8
sys.exit(bool(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)))
PYTHON
  held
}

run 2 train "${tiny[@]}" "${mock[@]}" "--train.$evil=1"
escapes err
printf 'train:\n  "x\\e]0;owned\\a\xc2\x9b2J\xe2\x80\xae": 1\n' > unknown.yaml
run 2 train unknown.yaml
seen='\u001b]0;owned\u0007\u009b2J\u202e' escapes err
holds "unknown options and keys of YAML"
run 3 inspect "$evil"
escapes err
run 2 "$evil"
escapes err
run 2 inspect x "--$evil"
escapes err
holds "paths, commands and options in errors"
printf 'echo $'"'"'\\e]0;owned\\a\\x9b2J\\xe2\\x80\\xae'"'"' >&2\nexit 3\n' > script.sh
run 2 train --from-megatron-args script.sh
escapes err
holds "the words of a launch script"
name=$'x\xc2\x9b2J\xe2\x80\xae'
run 0 train "${tiny[@]}" "${mock[@]}" --train.train_iters=1 --optim.lr_warmup_iters=0 "--run.name=$name"
seen='x\u009b2J\u202e'
if grep -qF 2J out; then escapes out; fi
run 0 train "${tiny[@]}" "${mock[@]}" --print-config "--run.name=$name"
escapes out
holds "run.name in the log and with --print-config"

seen='\u001b]0;owned\u0007\u009b2J\u202e'
mkdir -p hf
printf '{"model_type": "\\u001b]0;owned\\u0007\\u009b2J\\u202e", "architectures": ["X"]}' > hf/config.json
python3 - << 'PYTHON'
import json, struct
head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open("hf/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + b"\0\0\0\0")
PYTHON
run 0 inspect hf
escapes out
run 0 inspect hf --json
python3 -c 'import json; assert "\x1b]0;owned\x07\x9b2J\u202e" in open("out").read().encode().decode("unicode_escape"); json.load(open("out"))' ||
  fail "the JSON does not hold the text"
held
holds "model_type of a Hugging Face directory, as JSON too"

echo "Bytes that are not UTF-8 in JSON"
bad=$'x\xffy'
cp -a hf "$bad"
printf '{"model_type": "a\xff", "architectures": ["X\xff"]}' > "$bad/config.json"
make_corpus
run 0 train "${tiny[@]}" --train.train_iters=1 --optim.lr_warmup_iters=0 --checkpoint.save=plain --checkpoint.save_interval=1
cp -a plain "$bad.saved"
for form in "$bad.saved" "$bad.saved/iter_0000001" "$bad.saved/iter_0000001 --diff $bad.saved/iter_0000001"; do
  IFS=' ' read -r -a words <<< "$form"
  run 0 inspect "${words[@]}" --json
  python3 -c 'import json; json.load(open("out", encoding="utf-8"))' || fail "inspect $form printed no JSON"
  held
done
cp corpus.bin "$bad.bin" && cp corpus.idx "$bad.idx"
run 3 inspect "$bad" --json
python3 -c 'import json; json.load(open("out", encoding="utf-8"))' || fail "inspect printed no JSON"
cp "$bad".saved/iter_0000001/*.safetensors "$bad.safetensors"
run 0 inspect "$bad.safetensors" --json
python3 -c 'import json; json.load(open("out", encoding="utf-8"))' || fail "inspect printed no JSON"
holds "inspect --json of paths that are not UTF-8"

echo "Text of tokenizers"
"$metroplex" tokenizer decode --type bytes --ids 27 91 50 74 255 > out
[ "$(od -An -tx1 out | tr -d ' \n')" = 1b5b324aff0a ] || fail "a pipe gets $(od -An -tx1 out)"
held
python3 - "$metroplex" << 'PYTHON' > out || fail "a terminal gets something else"
import os, pty, sys
data = b""
def read(fd):
    global data
    got = os.read(fd, 1024)
    data += got
    return got
sys.stdout.flush()
pty.spawn([sys.argv[1], "tokenizer", "decode", "--type", "bytes", "--ids", "27", "91", "50", "74", "255"], read)
sys.exit(data.replace(b"\r\n", b"\n") != b"\\u001b[2J\\xff\n")
PYTHON
held
holds "tokenizer decode: to a pipe as it is, to a terminal escaped"

echo "A value that another process writes to the store of a run without METROPLEX_SECRET"
port=$(free_port)
env "${around[@]}" RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
  timeout -k 5 60 "$metroplex" train "${tiny[@]}" "${mock[@]}" > out 2> err < /dev/null &
job=$!
python3 - "$port" << 'PYTHON'
import hashlib, hmac, socket, struct, sys, time
for _ in range(300):
    try:
        store = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.1)
field = lambda data: struct.pack("<I", len(data)) + data
def receive():
    head = store.recv(5, socket.MSG_WAITALL)
    return store.recv(struct.unpack("<I", head[1:])[0], socket.MSG_WAITALL)
nonce = b"anonce"
proof = hmac.new(b"", b"store client " + receive() + b" " + nonce, hashlib.sha1).hexdigest().encode()
store.sendall(b"h" + field(nonce + b" " + proof))
receive()
key, value = b"metroplex/attempt_0/decision", "r\x1b]0;owned\x07\x9b2J\u202e".encode()
store.sendall(b"s" + field(field(key) + field(value)))
time.sleep(1)
PYTHON
code=0
wait $job || code=$?
[ $code = 4 ] || fail "rank 0 ended with $code"
escapes err
holds "a decision of another process"
