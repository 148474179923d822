// Descriptions of how weights move, in which formats, and what is kept in memory: optim, precision, memory.
#include "config/optimizers.h"
#include "config/section_fields.h"

namespace metroplex::config {

static void visit_learning_rate(Optim& o, FieldList& field) {
  field("lr", o.lr, "Highest learning rate.", at_least(0));
  field("min_lr", o.min_lr, "Lowest learning rate of the decay.", at_least(0));
  field("lr_decay_style", o.lr_decay_style,
        "How the learning rate falls after warm-up. WSD: warm up, stay, then fall over lr_wsd_decay_iters.",
        one_of({"constant", "linear", "cosine", "inverse-square-root", "WSD"}));
  field("lr_decay_iters", o.lr_decay_iters, "Iterations until min_lr is reached. 0: train.train_iters.",
        between(0, 1e9));
  field("lr_decay_samples", o.lr_decay_samples, "The same in samples. 0: train.train_samples.", between(0, 1e15));
  field("lr_warmup_iters", o.lr_warmup_iters, "Iterations over which the rate rises from lr_warmup_init to lr.",
        between(0, 1e9));
  field("lr_warmup_samples", o.lr_warmup_samples, "The same in samples.", between(0, 1e15));
  field("lr_warmup_fraction", o.lr_warmup_fraction,
        "Warm-up as a share of the decay length; instead of lr_warmup_iters or lr_warmup_samples.",
        from_to_below(0, 1));
  field("lr_warmup_init", o.lr_warmup_init, "Learning rate that warm-up starts from.", at_least(0));
  field("lr_wsd_decay_style", o.lr_wsd_decay_style, "Shape of the last part of a WSD schedule.",
        one_of({"linear", "cosine", "exponential", "minus_sqrt"}));
  field("lr_wsd_decay_iters", o.lr_wsd_decay_iters, "Length of the last part of a WSD schedule.", between(0, 1e9));
  field("lr_wsd_decay_samples", o.lr_wsd_decay_samples, "The same in samples.", between(0, 1e15));
}

static void visit_decay(Optim& o, FieldList& field) {
  field("weight_decay", o.weight_decay, "Weight decay of matrices; biases and norms have none.", at_least(0));
  field("start_weight_decay", o.start_weight_decay,
        "Weight decay at the start of a linear or cosine weight_decay_incr_style. -1: weight_decay.", at_least(-1));
  field("end_weight_decay", o.end_weight_decay, "Weight decay at its end. -1: weight_decay.", at_least(-1));
  field("weight_decay_incr_style", o.weight_decay_incr_style, "How weight decay moves over training.",
        one_of({"constant", "linear", "cosine"}));
  field("apply_wd_to_qk_layernorm", o.apply_wd_to_qk_layernorm,
        "Weight decay reaches the query and key norms (model.qk_layernorm) too.");
}

static void visit_rules(Optim& o, FieldList& field) {
  field("adam_beta1", o.adam_beta1, "Decay of Adam's mean of gradients.", from_to_below(0, 1));
  field("adam_beta2", o.adam_beta2, "Decay of Adam's mean of squared gradients.", from_to_below(0, 1));
  field("adam_eps", o.adam_eps, "Added to the root of Adam's second moment.", above(0));
  field("sgd_momentum", o.sgd_momentum, "Momentum of sgd.", from_to_below(0, 1));
  field("lion_beta1", o.lion_beta1, "Share of the old momentum in the direction whose sign lion takes.",
        from_to_below(0, 1));
  field("lion_beta2", o.lion_beta2, "Decay of lion's momentum.", from_to_below(0, 1));
  field("muon_momentum", o.muon_momentum, "Momentum of the gradients that muon orthogonalises.", from_to_below(0, 1));
  field("muon_num_ns_steps", o.muon_num_ns_steps, "Newton-Schulz steps of an orthogonalisation.", between(1, 100));
  field("muon_use_nesterov", o.muon_use_nesterov, "Muon looks one step of its momentum ahead.");
  field("muon_scale_mode", o.muon_scale_mode,
        "Length of muon's update of an m x n matrix. spectral: sqrt(max(m, n)). unit_rms_norm: sqrt(m / n). "
        "shape_scaling: sqrt(max(1, m / n)).",
        one_of({"spectral", "unit_rms_norm", "shape_scaling"}));
  field("muon_extra_scale_factor", o.muon_extra_scale_factor, "Muon's update times this.", above(0));
}

static void visit_groups(Optim& o, FieldList& field) {
  field("decoupled_lr", o.decoupled_lr, "Highest learning rate of word embeddings and output layer. 0: lr.",
        at_least(0));
  field("decoupled_min_lr", o.decoupled_min_lr, "Lowest learning rate of word embeddings and output layer.",
        at_least(0));
  field(
      "param_groups", o.param_groups,
      "Rules by name, each \"PATTERN lr_mult=X wd_mult=Y\" (either may be left out; * and ? in a pattern stand for "
      "any "
      "text and any letter): learning rate and weight decay of the parameters it fits are multiplied. The first rule "
      "that fits a parameter's global name counts, so \"*.bias wd_mult=1\" gives biases their decay back. start_wd=X "
      "and "
      "end_wd=X stand for start_weight_decay and end_weight_decay.");
}

static void visit_state(Optim& o, FieldList& field) {
  field("main_params_dtype", o.main_params_dtype,
        "Format of the main copy that the optimizer updates beside half-precision parameters. bf16 keeps no copy "
        "besides bf16 parameters: small updates get lost.",
        one_of({"fp32", "bf16"}));
  field("exp_avg_dtype", o.exp_avg_dtype,
        "Format in which Adam's first moment is kept; it is computed in fp32. 8bit: in blocks with a scale each.",
        one_of({"fp32", "bf16", "8bit"}));
  field("exp_avg_sq_dtype", o.exp_avg_sq_dtype, "The same for Adam's second moment.",
        one_of({"fp32", "bf16", "8bit"}));
  field("store_param_remainders", o.store_param_remainders,
        "Keep of the fp32 main parameters only the 16 bits that the bf16 parameters do not hold: 2 bytes a parameter "
        "less, the same values.");
  field("optimizer_cpu_offload", o.optimizer_cpu_offload,
        "Main parameters and moments live in host memory and the step is done there, piece by piece, while other "
        "pieces of gradients and parameters are on their way. On the CPU it only costs copies.");
}

void visit(Optim& o, FieldList& field) {
  std::string updates;
  for (const OptimizerTraits& optimizer : optimizers())
    updates += (updates.empty() ? "" : " ") + std::string(optimizer.name) + ": " + optimizer.help + ".";
  field("optimizer", o.optimizer, updates.c_str(), one_of(optimizer_names()));
  visit_learning_rate(o, field);
  visit_decay(o, field);
  visit_rules(o, field);
  visit_groups(o, field);
  visit_state(o, field);
  field("clip_grad", o.clip_grad, "Largest norm of the whole gradient; longer ones are scaled down. 0: off.",
        at_least(0));
  field("override_opt_param_scheduler", o.override_opt_param_scheduler,
        "On resume, take the schedule from this configuration and not from the checkpoint.");
  field("use_checkpoint_opt_param_scheduler", o.use_checkpoint_opt_param_scheduler,
        "On resume, take the schedule from the checkpoint and not from this configuration.");
}

void visit(Precision& p, FieldList& field) {
  constexpr double kLargest = 1e38;  // the scale is an fp32 number
  field("params_dtype", p.params_dtype,
        "Number format of parameters and activations. bf16 and fp16 train with fp32 main parameters; softmax, norms "
        "and "
        "loss are computed in at least fp32 always. fp64 is for comparing layouts to the last digits.",
        one_of({"fp32", "fp64", "bf16", "fp16"}));
  field("fp32_residual_connection", p.fp32_residual_connection,
        "The residual stream of a half-precision model stays in fp32, between blocks and stages too.");
  field(
      "main_grads_dtype", p.main_grads_dtype,
      "Format in which gradients are added up and reduced. auto: fp32 (fp64 in an fp64 run). params: the parameters' "
      "own, half the memory and traffic.",
      one_of({"auto", "fp32", "params"}));
  field("loss_scale", p.loss_scale, "Constant factor of the loss. 0: dynamic with fp16, else none.",
        between(0, kLargest));
  field("initial_loss_scale", p.initial_loss_scale, "Dynamic scaling: the factor it begins with.",
        Limits{{}, 0, kLargest, true, false});
  field("min_loss_scale", p.min_loss_scale, "Dynamic scaling: the factor never falls below.",
        Limits{{}, 0, kLargest, true, false});
  field("loss_scale_window", p.loss_scale_window,
        "Dynamic scaling: the factor doubles after so many steps in a row without overflow.", between(1, 1e9));
  field("hysteresis", p.hysteresis,
        "Dynamic scaling: overflows before the factor is halved. What is used up comes back only when it doubles.",
        between(1, 1e9));
  field("check_for_nan_in_grad", p.check_for_nan_in_grad,
        "Stop, naming rank, parameter and microbatch, when a gradient is not finite. Off with dynamic scaling, which "
        "skips such steps.");
  field("check_for_large_grads", p.check_for_large_grads,
        "Warn when a gradient is much larger than those before it.");
  field("grad_norm_skip_threshold", p.grad_norm_skip_threshold,
        "Skip the steps whose gradient norm is above this. inf: none.", or_infinite(above(0)));
}

void visit(Memory& m, FieldList& field) {
  field("recompute_granularity", m.recompute_granularity,
        "Run parts of the forward pass again in the backward pass instead of keeping their activations. full: whole "
        "layers, of which only the inputs are kept, for about a third more time. selective: recompute_modules.",
        one_of({"none", "full", "selective"}));
  field(
      "recompute_method", m.recompute_method,
      "Which layers full means. uniform: all, in chunks of recompute_num_layers that keep one input each. block: the "
      "first recompute_num_layers of every model chunk.",
      one_of({"", "uniform", "block"}));
  field("recompute_num_layers", m.recompute_num_layers, "See recompute_method.", between(0, 100000));
  field("recompute_modules", m.recompute_modules,
        "What selective recomputes: core_attn (scores, softmax, dropout), mlp, layernorm, activation. Norms and "
        "activations discard their outputs, and what follows them computes those again. Empty: core_attn.");
  field("distribute_saved_activations", m.distribute_saved_activations,
        "The layer inputs that full recompute keeps are cut over the tensor-parallel ranks and gathered in the "
        "backward "
        "pass (ZeRO-R). sequence_parallel has them cut already.");
  field("offload_activations", m.offload_activations,
        "Move kept activations away until the backward pass. host: from the GPU to pinned memory, beside the "
        "computation. file: to a file, written and read by the thread that computes, which waits for it.",
        one_of({"none", "host", "file"}));
  field(
      "offload_directory", m.offload_directory,
      "Folder of that file, which needs room for the activations of all microbatches in flight. Empty: the system's "
      "temporary folder.");
  field("log_memory", m.log_memory,
        "Print what parameters, gradients, optimizer and activations take after step 2, beside the prediction.");
}

}  // namespace metroplex::config
