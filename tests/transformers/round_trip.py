#!/usr/bin/env python3
"""Directories that metroplex writes, loaded by Hugging Face's transformers: round_trip.py BIN_FOLDER. Needs torch,
transformers and peft; scripts/transformers.sh has them.

Every directory of tests/vectors/hf is trained for 20 steps on tp 2 x pp 2 x dp 2 threads, its last checkpoint written
by `metroplex convert`, and that loaded by AutoModelForCausalLM: no key may be missing, none left over, and the logits
of random tokens must be those that the checkpoint itself gives in metroplex on tp 2 x pp 2 ranks. Then models that
began from nothing with a tokenizer: AutoTokenizer must load what is written and give the recorded ids. Then adapters
trained on such a directory: merged into it, and loaded by PeftModel beside it, both must give the checkpoint's logits."""
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

vectors = pathlib.Path(__file__).resolve().parent.parent / "vectors"
programs = pathlib.Path(sys.argv[1]).resolve()
environment = {**os.environ, "OMP_NUM_THREADS": "1"}
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

STEPS = ["--data.mock_data=true", "--train.seq_length=24", "--train.micro_batch_size=1", "--train.global_batch_size=4",
         "--train.train_iters=20", "--train.eval_iters=0", "--train.progress=false", "--optim.lr=0.003", "--optim.lr_warmup_iters=2",
         "--run.device=cpu"]


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout


def num_layers(config):
    return config.get("num_hidden_layers") or config.get("n_layer") or len(config["layers_block_type"])


def layout_of(config):
    """Options of a run on 8 ranks, 4 where three heads allow no tp 2, and those of the program that gives logits."""
    heads = config.get("num_attention_heads") or config.get("n_head") or config["num_heads"]
    layers = num_layers(config)
    tp = 2 if heads % 2 == 0 else 1
    options = ["--nproc", 4 * tp, "--tp", tp, "--pp", 2]
    if layers % 2:
        options.append(f"--parallel.decoder_first_pipeline_num_layers={layers // 2 + 1}")
    experts = max(config.get(key) or 0 for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"))
    if experts and len(config.get("mlp_only_layers") or []) < layers:
        options += ["--ep", 1 + (experts + 1) % 2, "--etp", 1, "--parallel.sequence_parallel=true"]
    return options, ["--tp", tp, "--pp", 2]


def ours(checkpoint, tokens, layout, work):
    (work / "tokens.json").write_text(json.dumps(tokens.tolist()))
    run(programs / "metroplex_hf_parity", checkpoint, "--tokens", work / "tokens.json", "--logits", work / "logits", *layout)
    return load_file(work / "logits")["logits"]


def loaded(directory, dtype=torch.float32):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, output_loading_info=True,
                                                                    attn_implementation="eager", experts_implementation="eager")
    left = {key: value for key, value in info.items() if value}
    if left:
        sys.exit(f"{directory}: transformers says {left}")
    return model.eval()


def with_vocabulary(directory, size):
    model = loaded(directory)
    if size > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(size, mean_resizing=False)
    return model


def allowed(config, logits, exact, tokens):
    """Both sides compute in fp32 from the same numbers, in another order of sums. `exact` is the same model in fp64
    (norms and routers stay fp32 there): how far transformers' own fp32 is from it, or a unit of 2^-24 in each of the 4
    products of a layer, whose sums are added in a tree, of random sign; four times the larger, as metroplex_hf_parity."""
    layers = num_layers(config)
    width = max(config.get("hidden_size") or config["n_embd"], config.get("intermediate_size") or 0, config["vocab_size"])
    unit = 2.0 ** -24 * math.sqrt(8 * layers * math.log2(width) + tokens.numel())
    return 4 * max((logits - exact).abs().max().item(), unit * logits.abs().max().item())


def compare(name, written, checkpoint, layout, before, work):
    """The logits of the directory in transformers against those of the checkpoint here; both far from `before`."""
    config = json.loads((written / "config.json").read_text())
    torch.manual_seed(7)
    tokens = torch.randint(config["vocab_size"], (2, 24))
    model = loaded(written)
    with torch.no_grad():
        theirs = model(tokens).logits
        exact = model.double()(tokens).logits
        first = with_vocabulary(before, config["vocab_size"])(tokens).logits if before else None
    got = ours(checkpoint, tokens, layout, work)
    limit = allowed(config, theirs, exact, tokens)
    worst = (got - theirs).abs().max().item()
    moved = (theirs - first).abs().max().item() if before else math.inf
    print(f"{name}: {got.numel()} logits, at most {worst:.2e} apart, {limit:.2e} is allowed"
          + (f"; training moved them by {moved:.2f}" if before else ""), flush=True)
    if got.shape != theirs.shape or not worst <= limit or not moved > 100 * limit:
        sys.exit(f"{name}: FAILED")


class ForcedEnd(transformers.LogitsProcessor):
    """Leaves only the token `end` when the sequence has `length` tokens."""

    def __init__(self, end, length):
        self.end, self.length = end, length

    def __call__(self, ids, scores):
        if ids.shape[1] == self.length:
            scores = torch.full_like(scores, -math.inf)
            scores[:, self.end] = 0.0
        return scores


def stops(name, directory):
    """generate() of transformers stops at each end token of the directory. Returns the end tokens."""
    model = loaded(directory)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
    for end in ends:
        made = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=12, do_sample=False,
                              logits_processor=transformers.LogitsProcessorList([ForcedEnd(end, 6)]))
        if made.shape[1] != 7 or made[0, -1] != end:
            sys.exit(f"{name}: generate() made {made.tolist()} and should stop at {end}")
    return ends


def same_ids(name, source, written):
    """The ids and generation settings of the source, and generate() stops there."""
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (source, written))
    keys = [key for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in before]
    if any(before[key] != after.get(key) for key in keys):
        sys.exit(f"{name}: the ids {[before[key] for key in keys]} became {[after.get(key) for key in keys]}")
    generation = source / "generation_config.json"
    if generation.exists() and json.loads(generation.read_text()) != json.loads((written / "generation_config.json").read_text()):
        sys.exit(f"{name}: another generation_config.json")
    if before.get("eos_token_id") is not None and not stops(name, written):
        sys.exit(f"{name}: the written directory has no end token")


def trained_directory(case, work):
    config = json.loads((case / "config.json").read_text())
    layout, forward = layout_of(config)
    run(programs / "metroplex", "train", "--model.from", case, *STEPS, *layout, "--checkpoint.save", work / "run")
    run(programs / "metroplex", "convert", work / "run", "--to", "hf", work / "out", "--dtype", "fp32")
    before = case
    if "quantization_config" in config:  # transformers does not run FP8 weights on a CPU
        before = work / "before"
        run(programs / "metroplex", "convert", case, "--to", "hf", before)
    compare(case.name, work / "out", work / "run", forward, before, work)
    same_ids(case.name, case, work / "out")
    stored_as(config["dtype"], work)
    quantized_as_torch(case.name, config["model_type"] in ("gpt2", "mamba2"), work)


def quantized_as_torch(name, rejected, work):
    """Codes and scales of --quantization fp8 are those that torch computes from the main parameters. Families that store
    all experts of a layer as one tensor have no such form."""
    whole = load_file(work / "out" / "model.safetensors")
    rejected = rejected or any(value.dim() == 3 and not key.endswith(("conv1d.weight", "_decay", "slope_rate")) for key, value in whole.items())
    command = [programs / "metroplex", "convert", work / "run", "--to", "hf", work / "fp8", "--quantization", "fp8"]
    if rejected:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode == 0 or "has no FP8 form" not in done.stderr:
            sys.exit(f"{name}: --quantization fp8 ended with {done.returncode}:\n{done.stderr}")
        return
    run(*command)
    written = load_file(work / "fp8" / "model.safetensors")
    scales = [key for key in written if key.endswith("_scale_inv")]
    if not scales:
        sys.exit(f"{name}: no weight is quantized")
    for key in scales:
        weight = key.removesuffix("_scale_inv")
        for block in itertools.product(*(range(size) for size in written[key].shape)):
            region = tuple(slice(128 * at, 128 * (at + 1)) for at in block)
            scale = whole[weight][region].abs().max() / 448
            codes = (whole[weight][region] / scale).to(torch.float8_e4m3fn)
            if written[key][block] != scale or not torch.equal(codes.view(torch.uint8), written[weight][region].view(torch.uint8)):
                sys.exit(f"{name}: {weight} is quantized otherwise than by torch")
    print(f"{name}: {len(scales)} weights are quantized as by torch", flush=True)


def stored_as(name, work):
    """Left out, --dtype is that of the run; bf16 and fp16 weights are fp32 main parameters rounded once."""
    run(programs / "metroplex", "convert", work / "run", "--to", "hf", work / "stored")
    model, whole = loaded(work / "stored", dtype="auto"), loaded(work / "out").state_dict()
    if model.dtype != getattr(torch, name):
        sys.exit(f"written as {model.dtype}, the run was in {name}")
    wrong = [key for key, value in model.state_dict().items() if not torch.equal(value, whole[key].to(value.dtype))]
    if wrong:
        sys.exit(f"these are not the main parameters rounded to {name}: {wrong}")


TOKENIZERS = {  # models that begin from nothing with one
    "gpt2": ["--model.family=gpt", "--model.untie_embeddings_and_output_weights=false"],
    "llama3": ["--model.family=llama"],
    "qwen2": ["--model.family=llama", "--model.qk_layernorm=true"],
}


def with_tokenizer(name, options, work):
    folder = vectors / "tokenizers" / name
    run(programs / "metroplex", "train", *options, "--model.num_layers=2", "--model.hidden_size=32",
        "--model.num_attention_heads=4", "--data.tokenizer_type=bpe", f"--data.tokenizer_model={folder / 'tokenizer.json'}",
        *STEPS, "--nproc", 8, "--tp", 2, "--pp", 2, "--checkpoint.save", work / "run")
    run(programs / "metroplex", "convert", work / "run", "--to", "hf", work / "out")
    compare(f"{name} tokenizer", work / "out", work / "run", ["--tp", 2, "--pp", 2], None, work)
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "out")
    cases = [case for case in json.loads((folder / "cases.json").read_text()) if "text" in case]
    for case in cases:
        ids = tokenizer(case["text"], add_special_tokens=False)["input_ids"]
        if ids != case["ids"]:
            sys.exit(f"{name}: {case['text']!r} has the ids {ids}, {case['ids']} are recorded")
    print(f"{name} tokenizer: {len(cases)} texts have the recorded ids", flush=True)
    if tokenizer.eos_token_id not in stops(name, work / "out"):
        sys.exit(f"{name}: generate() does not stop at the end token {tokenizer.eos_token_id} of the tokenizer")


LATENT = "--peft.lora_target_modules=q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj"
# A vocabulary of three more tokens, whose rows are trained next to the adapters.
GROWN, SAVED = "--model.vocab_size={}", "--peft.modules_to_save="
ADAPTED = [("llama_biases", []), ("qwen3", ["--peft.use_rslora=true"]), ("gemma3", []), ("gpt_oss", []), ("deepseek_v3", [LATENT]),
           ("llama_biases", ["--peft.use_dora=true", "--peft.rank_pattern=o_proj=2"]),
           ("qwen3", ["--peft.rank_pattern=up_proj=3,layers.1.self_attention.q_proj=2", "--peft.alpha_pattern=down_proj=3"]),
           ("llama_biases", [GROWN, SAVED + "embed_tokens,lm_head"]), ("gemma3", [GROWN, SAVED + "embed_tokens"])]


def adapted_directory(case, options, work):
    """The checkpoint's logits, those of the merged directory, and those of the first one with the adapters in PEFT."""
    config = json.loads((case / "config.json").read_text())
    layout, forward = layout_of(config)
    if GROWN in options:
        config["vocab_size"] += 3
    options = [option.format(config["vocab_size"]) for option in options]
    run(programs / "metroplex", "train", "--model.from", case, *STEPS, *layout, "--peft.lora_rank=4", "--peft.lora_alpha=8",
        "--peft.lora_dropout=" + ("0" if "--peft.use_dora=true" in options else "0.1"), *options, "--checkpoint.save", work / "run")
    run(programs / "metroplex", "convert", work / "run", "--to", "hf", work / "out", "--dtype", "fp32")
    compare(f"{case.name}, adapters merged", work / "out", work / "run", forward, case, work)
    same_ids(f"{case.name}, adapters merged", case, work / "out")
    run(programs / "metroplex", "convert", work / "run", "--to", "peft", work / "adapters", "--base", case)
    torch.manual_seed(7)
    tokens = torch.randint(config["vocab_size"], (2, 24))
    tokens[0, -3:] = torch.arange(config["vocab_size"] - 3, config["vocab_size"])
    model = peft.PeftModel.from_pretrained(with_vocabulary(case, config["vocab_size"]), work / "adapters").eval()
    stored, held = load_file(work / "adapters" / "adapter_model.safetensors"), peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    if stored.keys() != held.keys() or any(not torch.equal(stored[key], held[key].float()) for key in stored):
        sys.exit(f"{case.name}: PEFT holds other adapters than were written: {sorted(stored.keys() ^ held.keys())[:4]}")
    with torch.no_grad():
        theirs = model(tokens).logits
        exact = model.double()(tokens).logits
    got, limit = ours(work / "run", tokens, forward, work), allowed(config, theirs, exact, tokens)
    worst = (got - theirs).abs().max().item()
    print(f"{case.name}, {len(stored)} tensors in PEFT: at most {worst:.2e} apart, {limit:.2e} is allowed", flush=True)
    if not worst <= limit:
        sys.exit(f"{case.name}: FAILED")


VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
          "patch_size": 14}
MULTIMODAL = {  # text model, and the multimodal model around it
    "gemma3": lambda text: transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(text_config=text, vision_config=VISION, mm_tokens_per_image=4)),
    "ministral3": lambda text: transformers.Mistral3ForConditionalGeneration(
        transformers.Mistral3Config(text_config=text, vision_config={**VISION, "model_type": "pixtral", "head_dim": 8})),
}


def text_of_multimodal(name, build, work):
    """The text model of a multimodal directory: its logits here, and in transformers after an export."""
    torch.manual_seed(3)
    text = json.loads((vectors / "hf" / name / "config.json").read_text())
    model = build(text).eval()
    model.set_attn_implementation("eager")  # as loaded()
    model.save_pretrained(work / "source")
    run(programs / "metroplex", "convert", work / "source", "--to", "checkpoint", work / "run", "--weights-only")
    run(programs / "metroplex", "convert", work / "run", "--to", "hf", work / "out")
    compare(f"{name}, text of a multimodal directory", work / "out", work / "run", [], None, work)
    torch.manual_seed(7)
    tokens = torch.randint(text["vocab_size"], (2, 24))
    with torch.no_grad():
        theirs = model(tokens).logits
    worst = (loaded(work / "out")(tokens).logits - theirs).abs().max().item()
    if worst != 0:
        sys.exit(f"{name}: the multimodal model and its exported text model are {worst} apart")


done = 0
for case in sorted(path.parent for path in (vectors / "hf").glob("*/config.json")):
    with tempfile.TemporaryDirectory() as work:
        trained_directory(case, pathlib.Path(work))
    done += 1
for name, options in TOKENIZERS.items():
    with tempfile.TemporaryDirectory() as work:
        with_tokenizer(name, options, pathlib.Path(work))
    done += 1
for name, options in ADAPTED:
    with tempfile.TemporaryDirectory() as work:
        adapted_directory(vectors / "hf" / name, options, pathlib.Path(work))
    done += 1
for name, build in MULTIMODAL.items():
    with tempfile.TemporaryDirectory() as work:
        text_of_multimodal(name, build, pathlib.Path(work))
    done += 1
print(f"transformers {transformers.__version__}, peft {peft.__version__}: {done} models of metroplex load there and say the same")
