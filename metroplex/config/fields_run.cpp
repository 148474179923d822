// Descriptions of the process, the data, the checkpoints and the loop: run, data, checkpoint, train.
#include "config/section_fields.h"

namespace metroplex::config {

void visit(Run& r, FieldList& field) {
  field("name", r.name, "Name of the run, printed when it starts and kept in its checkpoints' configuration.");
  field("seed", r.seed, "Seed of the weights, of dropout and of the order of the data.", between(0, 4294967295.0));
  field("nproc", r.nproc,
        "Ranks that the program starts by itself on this machine. 0: an outer launcher (torchrun, Slurm, Open MPI) "
        "says, and without one there is one rank.",
        between(0, 65536));
  field("backend", r.backend,
        "How ranks talk. threads: all ranks in one process, no sockets. gloo: processes on CPUs. nccl: processes on "
        "GPUs, one each. auto: nccl where several ranks compute on GPUs; on CPUs gloo under an outer launcher, else "
        "threads.",
        one_of({"auto", "threads", "gloo", "nccl"}));
  field("device", r.device,
        "Where ranks compute. cuda: one GPU a rank, by local rank; with run.backend = threads all ranks share the "
        "first GPU. auto: cuda where every local rank has a GPU of its own (with run.backend = nccl always, with "
        "gloo never), else cpu.",
        one_of({"auto", "cpu", "cuda"}));
  field("threads_per_rank", r.threads_per_rank,
        "CPU threads of a rank. 0: cores / ranks of this machine, at least 1.", between(0, 4096));
  field("distributed_timeout_minutes", r.distributed_timeout_minutes,
        "How long a rank waits for its peers before it gives up.", between(1, 100000));
  field("master_port", r.master_port, "Port of rank 0. 0: a free one, which only our own launcher can choose.",
        between(0, 65535));
  field(
      "network_interface", r.network_interface,
      "Network interface, or several with commas, over which processes find and watch each other and gloo sends. "
      "Empty: what GLOO_SOCKET_IFNAME says, else the interface that leads to the master. NCCL has its own variable, "
      "NCCL_SOCKET_IFNAME.");
  field("deterministic_mode", r.deterministic_mode,
        "On GPUs, take the attention kernels with a fixed order of addition; everything else has one already. On "
        "CPUs it changes nothing.");
}

void visit(Data& d, FieldList& field) {
  field(
      "data_path", d.data_path,
      "Indexed datasets, without .bin/.idx: one PREFIX, several (blended by their lengths), or WEIGHT PREFIX pairs. "
      "data.split cuts them into train, valid and test.");
  field("train_data_path", d.train_data_path, "Datasets of the training split alone; instead of data_path.");
  field("valid_data_path", d.valid_data_path, "Datasets of the validation split alone.");
  field("test_data_path", d.test_data_path, "Datasets of the test split alone.");
  field("split", d.split, "Shares of train, valid and test: \"969, 30, 1\". They need not add up to anything.");
  field("mock_data", d.mock_data, "Made-up tokens instead of datasets, to try layouts and speed.");
  field("data_cache_path", d.data_cache_path,
        "Folder of the sample indices. Empty: cache/ beside the first dataset.");
  field(
      "tokenizer_type", d.tokenizer_type,
      "none: the data holds token numbers and model.vocab_size says how many there are. bytes: one token a byte. "
      "sentencepiece: tokenizer_model is a .model file. bpe: tokenizer_model is a tokenizer.json, or vocab_file and "
      "merge_file are GPT-2's.",
      one_of({"none", "bytes", "sentencepiece", "bpe"}));
  field("tokenizer_model", d.tokenizer_model, "File of the tokenizer.");
  field("vocab_file", d.vocab_file, "GPT-2's vocab.json.");
  field("merge_file", d.merge_file, "GPT-2's merges.txt.");
  field(
      "dataloader_type", d.dataloader_type,
      "single: samples in the dataset's own shuffled order, resumable on any layout. cyclic: reshuffled every epoch.",
      one_of({"single", "cyclic"}));
  field("data_sharding", d.data_sharding,
        "cyclic only: each data-parallel rank shuffles a share of its own, so a run cannot go on with another dp.");
  field("reset_position_ids", d.reset_position_ids, "Positions start again after each end of document.");
  field("reset_attention_mask", d.reset_attention_mask, "Tokens do not attend across an end of document.");
  field("eod_mask_loss", d.eod_mask_loss, "Predicting what follows an end of document does not count in the loss.");
  field("num_workers", d.num_workers,
        "Threads that read microbatches ahead, on every rank that reads. 0: read when asked.", between(0, 1024));
}

void visit(Checkpoint& c, FieldList& field) {
  field("save", c.save,
        "Folder that checkpoints are written to; it is empty, or the one that is loaded from. Empty: never.");
  field("load", c.load, "Folder of checkpoints, or one of them, to go on from. Empty: start fresh.");
  field("save_interval", c.save_interval, "Iterations between two checkpoints.", between(0, 1e9));
  field("save_retain_interval", c.save_retain_interval,
        "Checkpoints at multiples of this are kept for good. 0: keep_last alone decides.", between(0, 1e9));
  field("keep_last", c.keep_last,
        "Keep so many checkpoints, counted back from the newest along the run; those of a branch that was left by "
        "going "
        "back to an earlier one count for nothing and are removed. 0: all.",
        at_least(0));
  field("ckpt_step", c.ckpt_step, "Load this iteration. 0: the latest.", between(0, 1e9));
  field("finetune", c.finetune, "Load weights only: iteration, optimizer and data start anew.");
  field("no_load_optim", c.no_load_optim, "Leave the optimizer's state in the checkpoint.");
  field("no_load_rng", c.no_load_rng, "Leave the random state in the checkpoint.");
  field("no_save_optim", c.no_save_optim, "Write weights only; such a checkpoint cannot resume training exactly.");
  field("exit_on_missing_checkpoint", c.exit_on_missing_checkpoint,
        "Stop when checkpoint.load is absent or empty, instead of starting fresh.");
  field(
      "allow", c.allow,
      "Keys that may differ from what the checkpoint was made with, although they change the model that its weights "
      "are of (model.rotary_base, data.tokenizer_model, ...). --checkpoint.allow takes several.");
}

static void visit_lengths(Train& t, FieldList& field) {
  field("seq_length", t.seq_length, "Tokens of a sample.", between(1, 2147483647));
  field("micro_batch_size", t.micro_batch_size, "Samples that pass the model at once on one rank.",
        between(1, 1000000));
  field("global_batch_size", t.global_batch_size,
        "Samples of one optimizer step over all ranks: micro_batch_size * dp * number of microbatches. 0: one "
        "microbatch.",
        between(0, 1e9));
  field("step_batch_size_schedule", t.step_batch_size_schedule,
        "Batch size that steps up: \"0:768 250B:1536\" switches after so many tokens (K, M, B, T). Instead of "
        "global_batch_size.");
  field("rampup_batch_size", t.rampup_batch_size,
        "\"START INCREMENT SAMPLES\": grow from START to global_batch_size in equal steps over that many samples.");
  field("decrease_batch_size_if_needed", t.decrease_batch_size_if_needed,
        "Round a batch that does not divide over the ranks down instead of refusing it.");
  field("train_iters", t.train_iters, "Length of the run in iterations; either this or train_samples.",
        between(0, 1e9));
  field("train_samples", t.train_samples, "Length of the run in samples.", between(0, 1e15));
  field("eval_interval", t.eval_interval, "Iterations between evaluations. 0: none while training.", between(0, 1e9));
  field("eval_iters", t.eval_iters, "Iterations of one evaluation.", between(0, 1e9));
  field("exit_interval", t.exit_interval, "Save and end at a multiple of this iteration. 0: off.", at_least(0));
  field("exit_duration_in_mins", t.exit_duration_in_mins, "Save and end after so many minutes. 0: off.", at_least(0));
}

void visit(Train& t, FieldList& field) {
  visit_lengths(t, field);
  field("calculate_per_token_loss", t.calculate_per_token_loss,
        "Every token weighs the same, also across microbatches of unequal loss masks. false: every microbatch does.");
  field("label_smoothing", t.label_smoothing, "Share of the target probability spread over the vocabulary.",
        from_to_below(0, 1));
  field("check_for_nan_in_loss", t.check_for_nan_in_loss, "Stop, naming rank and step, when the loss is not finite.");
  field("log_interval", t.log_interval, "Iterations between two log lines.", at_least(1));
  field("log_num_zeros_in_grad", t.log_num_zeros_in_grad, "Log how many elements of the gradient are zero.");
  field("log_params_norm", t.log_params_norm, "Log the norm of all parameters.");
  field("tensorboard_dir", t.tensorboard_dir, "Folder for TensorBoard files. Empty: none.");
  field("tensorboard_log_interval", t.tensorboard_log_interval, "Iterations between two points in TensorBoard.",
        at_least(1));
  field("metrics_file", t.metrics_file,
        "File that gets one JSON line every iteration, whatever log_interval is, skipped ones too. Empty: none.");
  field("timing_log_level", t.timing_log_level,
        "Times that are printed every log_interval. 0: none but the iteration's. 1: the parts of a step, saving, "
        "evaluating. 2: every action of the pipeline too.",
        between(0, 2));
  field("progress", t.progress, "Progress bar on a terminal.");
}

}  // namespace metroplex::config
