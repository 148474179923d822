#include "conformance/forms.h"

#include <algorithm>
#include <sstream>

namespace metroplex::conformance {
namespace {

constexpr Form kForms[] = {
    {"blending", "", "",
     "blending end_to_end exhaustive get_blend_from_list sizes split_all_zero_error split_matrix_two splits"},
    {"blending.blending", "weights size", "dataset_index dataset_sample_index counts", ""},
    {"blending.end_to_end", "name", "", "corpus_rule doc_lengths seed sequence_length sizes split splits weights"},
    {"blending.end_to_end.splits", "split", "length tokens_first6 type",
     "dataset_index dataset_sample_index sub_lengths sub_num_samples"},
    {"blending.exhaustive", "sizes", "dataset_index dataset_sample_index", "counts"},
    {"blending.get_blend_from_list", "input", "output", ""},
    {"blending.sizes", "surplus target weights", "sizes", ""},
    {"blending.split_matrix_two", "a b", "matrix", ""},
    {"blending.splits", "split", "vector matrix ranges_for_*", ""},

    // Its runs are named by their keys; a shard with a key unknown to us is another shard.
    {"ckpt_sharding", "", "", "runs"},
    {"ckpt_sharding.runs", "", "", "*"},

    {"config_validation", "", "", "cases"},
    {"config_validation.cases", "name kwargs ok", "resolved", ""},

    {"data_parallel_misc", "", "",
     "cp_zigzag ddp_bucket_size merge_cu_seqlens num_samples padded_vocab samplers torch_randperm"},
    {"data_parallel_misc.cp_zigzag", "seq cp", "positions_per_rank", ""},
    {"data_parallel_misc.ddp_bucket_size", "bucket_size dp num_buckets num_parameters overlap_grad_reduce", "result",
     ""},
    {"data_parallel_misc.merge_cu_seqlens", "cu_seqlens seq_length", "merged", ""},
    {"data_parallel_misc.num_samples", "", "", "defaults cases"},
    {"data_parallel_misc.num_samples.cases", "args", "result", ""},
    {"data_parallel_misc.num_samples.cases.args", "", "",
     "eval_global_batch_size eval_interval eval_iters full_validation global_batch_size iteration "
     "phase_transition_iterations skip_train start_eval_at_iter train_iters train_samples"},
    {"data_parallel_misc.padded_vocab", "vocab divisible_by tp", "padded", ""},
    {"data_parallel_misc.samplers", "type total dp", "batches_per_rank",
     "consumed data_sharding drop_last global_batch len_per_rank micro_batch"},
    {"data_parallel_misc.torch_randperm", "n seed", "randperm", ""},

    {"dist_opt_layout", "", "", "cases default_bucket_size_when_overlap padding"},
    {"dist_opt_layout.cases",
     "name param_numels shared_embedding bucket_size dp pad_for_high_nccl_busbw bucket_end_divisor",
     "dist_opt default shards", ""},
    {"dist_opt_layout.cases.dist_opt", "", "param_index_map bucket_indices per_bucket_numel_unpadded", ""},
    {"dist_opt_layout.cases.default", "", "param_index_map bucket_indices per_bucket_numel_unpadded", ""},
    {"dist_opt_layout.cases.shards", "dp_rank", "buckets", ""},
    {"dist_opt_layout.cases.shards.buckets", "bucket", "shard_world params", ""},
    {"dist_opt_layout.cases.shards.buckets.params", "param_idx", "gbuf_local gbuf_world gbuf_world_in_bucket param",
     ""},
    {"dist_opt_layout.default_bucket_size_when_overlap", "dp", "default", ""},
    {"dist_opt_layout.padding", "", "", "pad_to_divisor pad_param_start pad_bucket_end"},

    {"echo_planner", "", "", "cases primitives"},
    {"echo_planner.cases", "name ep num_experts counts",
     "spillover spare avg load_per_ep_rank greedy approx_bin_packing", "routing_choices reroute"},
    {"echo_planner.cases.greedy", "num_spare_per_rank threshold",
     "assign breadth_first depth_first offloaded_[ep_rank][spare] final_load_per_ep_rank check_totals", ""},
    {"echo_planner.cases.approx_bin_packing", "", "",
     "num_spare_per_rank assign breadth_first depth_first offloaded_[ep_rank][spare] final_load_per_ep_rank "
     "check_totals undefined"},
    {"echo_planner.cases.reroute", "num_spare_per_rank algorithm ranks", "map_home_to_spare", "column_layout"},
    {"echo_planner.cases.reroute.ranks", "ep_rank", "rerouted_columns_per_token tokens_per_expert", ""},
    {"echo_planner.primitives", "", "", "one_shot_greedy approx_bin_packing"},
    {"echo_planner.primitives.one_shot_greedy", "chunks buckets", "out", ""},
    {"echo_planner.primitives.approx_bin_packing", "spillover_sorted_desc spare_sorted_desc avg num_buckets",
     "assign remaining", ""},

    {"flops_memory", "", "", "default_args flops memory"},
    {"flops_memory.flops", "name batch_size args extra", "flops", ""},
    {"flops_memory.flops.extra", "", "", "seqlen_squared_sum_in_batch total_real_tokens_in_batch"},
    {"flops_memory.memory", "name args", "weight_and_optimizer_bytes activation_bytes activation_bytes_without_sp",
     ""},

    {"gpt_dataset_index", "", "", "build_sample_idx_raw cases document_index_direct masks mock rng"},
    {"gpt_dataset_index.build_sample_idx_raw",
     "sizes document_index sequence_length num_epochs tokens_per_epoch drop_last_partial add_extra", "sample_index",
     ""},
    {"gpt_dataset_index.cases",
     "name corpus_rule doc_lengths eod pad indices sequence_length num_samples seed add_extra_token split "
     "drop_last_partial_validation_sequence reset_position_ids reset_attention_mask eod_mask_loss "
     "inter_document_masking",
     "tokens_per_epoch num_epochs document_index sample_index shuffle_index length items unique_description_example",
     "create_attention_mask separate_final_epoch "
     "num_samples_sans_final_epoch num_samples_per_epoch num_samples_from_final_epoch"},
    {"gpt_dataset_index.cases.items", "idx", "tokens labels loss_mask position_ids",
     "cu_seqlens max_seqlen attention_mask_true_is_masked attention_mask"},
    {"gpt_dataset_index.document_index_direct", "documents num_epochs separate_final_epoch seed",
     "document_index shuffle_index_*", ""},
    {"gpt_dataset_index.masks", "data eod reset_position_ids reset_attention_mask eod_mask_loss",
     "loss_mask position_ids attention_mask_true_is_masked", ""},
    {"gpt_dataset_index.mock", "vocab_size eod", "size sequence_lengths_first get_0_5_7 total_tokens", ""},
    {"gpt_dataset_index.rng", "", "",
     "default_rng_integers randomstate_shuffle randomstate_u32 randomstate_shuffle_*"},
    {"gpt_dataset_index.rng.default_rng_integers", "seed low high size dtype", "first last sum sha256_le_i32", ""},
    {"gpt_dataset_index.rng.randomstate_shuffle", "seed n dtype", "out next_u32", ""},
    {"gpt_dataset_index.rng.randomstate_u32", "seed", "out", ""},

    {"grad_scaler", "", "", "cases errors"},
    {"grad_scaler.cases", "args found_inf", "trace_[scale,inv_scale,growth_tracker,hysteresis_tracker]", ""},
    {"grad_scaler.cases.args", "initial_scale min_scale growth_factor backoff_factor growth_interval hysteresis", "",
     ""},
    {"grad_scaler.errors", "args error found_inf", "", ""},
    {"grad_scaler.errors.args", "initial_scale min_scale growth_factor backoff_factor growth_interval hysteresis", "",
     ""},

    {"indexed_dataset", "", "", "cases dtype_codes merge optimal_dtype layout"},
    {"indexed_dataset.cases", "name dtype docs split_docs modes multimodal",
     "dtype_code idx_hex bin_hex num_sequences sequence_lengths sequences document_indices", "get slices"},
    {"indexed_dataset.cases.get", "idx offset length", "out", ""},
    {"indexed_dataset.cases.slices", "slice", "out", ""},
    {"indexed_dataset.merge", "inputs", "idx_hex sequence_lengths document_indices", "bin_hex"},
    {"indexed_dataset.optimal_dtype", "cardinality", "dtype", ""},

    {"hybrid_layers", "", "", "counts from_ratios parse segments select symbols"},
    {"hybrid_layers.counts", "pattern total_segments", "counts total_layers", ""},
    {"hybrid_layers.from_ratios", "num_layers attention_ratio mlp_ratio pattern", "", ""},
    {"hybrid_layers.parse", "pattern", "depths main mtp", ""},
    {"hybrid_layers.segments", "pattern", "layers", ""},
    {"hybrid_layers.select", "pattern pp pp_rank vpp vp_stage first last", "layers offset", ""},

    {"layers", "", "", "cases layouts"},
    {"layers.cases",
     "num_layers pp vpp num_layers_in_first num_layers_in_last account_for_embedding account_for_loss config_ok",
     "stages sum_num_layers covers_all_layers_exactly_once", ""},
    {"layers.cases.stages", "pp_rank vp_stage", "num_layers offset", ""},
    {"layers.layouts", "layout pp num_layers mtp_num_layers", "num_stages vpp by_pp_vpp flatten pretty stages valid",
     "mtp_standalone"},
    {"layers.layouts.stages", "pp_rank vp_stage", "decoder_layers decoder_offset ids mtp", ""},

    {"lr_schedules", "", "", "schedules load_state_dict"},
    {"lr_schedules.schedules", "name args groups", "values", ""},
    {"lr_schedules.schedules.args",
     "init_lr max_lr min_lr lr_warmup_steps lr_decay_steps lr_decay_style start_wd end_wd wd_incr_steps "
     "wd_incr_style",
     "", "wsd_decay_steps lr_wsd_decay_style override_opt_param_scheduler use_checkpoint_opt_param_scheduler"},
    {"lr_schedules.schedules.groups", "", "", "max_lr min_lr lr_mult wd_mult start_wd end_wd"},
    {"lr_schedules.schedules.values", "num_steps", "lr wd", ""},
    {"lr_schedules.load_state_dict", "name args state_dict",
     "num_steps max_lr min_lr lr_warmup_steps lr_decay_steps lr_decay_style start_wd end_wd wd_incr_steps "
     "wd_incr_style lr_after wd_after",
     ""},
    {"lr_schedules.load_state_dict.args",
     "init_lr max_lr min_lr lr_warmup_steps lr_decay_steps lr_decay_style start_wd end_wd wd_incr_steps "
     "wd_incr_style",
     "", "wsd_decay_steps lr_wsd_decay_style override_opt_param_scheduler use_checkpoint_opt_param_scheduler"},
    {"lr_schedules.load_state_dict.state_dict", "min_lr", "",
     "max_lr start_lr lr_warmup_steps warmup_iter warmup_steps lr_decay_steps decay_steps end_iter lr_decay_style "
     "decay_style num_steps num_iters start_wd end_wd wd_incr_steps wd_incr_style"},

    {"microbatches", "", "", "constant step rampup_legacy"},
    {"microbatches.constant", "global_batch_size micro_batch_size data_parallel_size decrease_batch_size_if_needed",
     "num_micro_batches current_global running_global", ""},
    {"microbatches.step", "micro_batch_size data_parallel_size schedule seq_length", "parsed initial updates", ""},
    {"microbatches.step.initial", "", "global_batch_size num_micro_batches running", ""},
    {"microbatches.step.updates", "consumed_samples consistency_check", "global_batch_size num_micro_batches running",
     ""},
    {"microbatches.rampup_legacy",
     "global_batch_size micro_batch_size data_parallel_size decrease_batch_size_if_needed start increment "
     "ramup_samples",
     "initial updates free_run_[consumed,gbs,nmb,running]", ""},
    {"microbatches.rampup_legacy.initial", "", "global_batch_size num_micro_batches running", ""},
    {"microbatches.rampup_legacy.updates", "consumed_samples consistency_check",
     "global_batch_size num_micro_batches running", ""},

    {"rank_groups", "", "",
     "configs generator_errors rank_offset init_variants init_errors masked_orthogonal embedding_ranks"},
    {"rank_groups.configs", "order tp cp ep dp pp etp world_size edp initialize_model_parallel_error",
     "dense expert initialize_model_parallel_groups", ""},
    {"rank_groups.configs.dense", "", "tp cp dp pp dp-cp tp-cp tp-dp tp-dp-cp tp-pp", ""},
    {"rank_groups.configs.expert", "", "tp ep dp pp tp-ep tp-ep-pp", ""},
    {"rank_groups.generator_errors", "args ok", "order", ""},
    {"rank_groups.generator_errors.args", "tp ep dp pp cp order", "", "rank_offset gtp_remat"},
    {"rank_groups.rank_offset", "args", "tp pp", "*"},
    {"rank_groups.init_errors", "world_size kwargs error", "", "groups"},
    {"rank_groups.init_variants", "name args kwargs error", "groups", ""},
    {"rank_groups.init_variants.args", "order tp cp ep dp pp etp", "", ""},
    {"rank_groups.masked_orthogonal", "world_size parallel_size mask", "groups", ""},
    {"rank_groups.embedding_ranks", "pp_ranks", "embedding position", ""},

    {"router", "", "",
     "routing group_limited aux z_loss sinkhorn capacity dropping permute sort_chunks pad_routing_map "
     "expert_bias_update qb_dual_update seq_aux permute_drop_and_pad"},
    {"router.aux", "logits topk score_function coeff total_num_tokens",
     "scores routing_map tokens_per_expert loss grad_logits", ""},
    {"router.capacity", "num_tokens num_experts capacity_factor min_capacity", "capacity", ""},
    {"router.dropping", "topk capacity_factor pad_to_capacity policy probs routing_map",
     "capacity final_probs final_map final_map_defined", ""},
    {"router.expert_bias_update", "tokens_per_expert expert_bias rate", "updated", ""},
    {"router.group_limited", "scores topk num_groups group_topk", "probs indices", ""},
    {"router.pad_routing_map", "routing_map pad_multiple", "output counts", ""},
    {"router.permute", "tokens routing_map probs num_out_tokens",
     "permuted permuted_probs sorted_indices unpermuted_no_probs unpermuted_with_probs", ""},
    {"router.permute_drop_and_pad", "tokens routing_map capacity", "permuted sorted_indices unpermuted_with_probs",
     ""},
    {"router.routing", "args logits", "probs routing_map top_indices tokens_per_expert", ""},
    {"router.routing.args", "topk score_function", "",
     "expert_bias use_pre_softmax num_groups group_topk scaling_factor"},
    {"router.seq_aux", "logits seq topk coeff", "tokens_per_expert loss", ""},
    {"router.sinkhorn", "logits tol", "norm_logits top1 top2 top1_probs_softmax_masked", ""},
    {"router.sort_chunks", "split_sizes sorted_idxs", "output", ""},
    {"router.z_loss", "logits coeff padding_mask_true_is_pad", "loss", "grad"},

    {"schedules", "", "", "configs overlap_examples docstring_example"},
    {"schedules.configs", "pp vpp num_microbatches group_size", "schedule_table valid_for_training ranks", ""},
    {"schedules.configs.ranks", "rank",
     "total all_warmup warmup remaining forward_only_warmup forward_only_remaining order "
     "peak_in_flight_chunk_activations te_graph_static_input_sets_1layer te_graph_slot_of_fwd_idx_1layer "
     "te_graph_static_input_sets_2layers te_graph_num_warmup_iters",
     "all_warmup_overlap_moe warmup_overlap_moe remaining_overlap_moe overlap_chunk_id_list_2layers "
     "overlap_order_2layers_wgrad0 overlap_order_2layers_wgrad1 te_graph_slot_of_fwd_idx_2layers"},
    {"schedules.overlap_examples", "order num_layers_per_chunk capture_wgrad_graph", "new_order chunk_id_list", ""},
    {"schedules.docstring_example", "warmup table", "order", ""},

    {"seeds", "", "", "s000 s001 s002 s003 s004"},
    {"seeds.s000", "id ok", "", "what input seed slip correct after_topk formula values"},
    {"seeds.s001", "id ok", "", "what input seed slip correct after_topk formula values"},
    {"seeds.s002", "id ok", "", "what input seed slip correct after_topk formula values"},
    {"seeds.s003", "id ok", "", "what input seed slip correct after_topk formula values"},
    {"seeds.s004", "id ok", "", "what input seed slip correct after_topk formula values"},

    {"tensor_parallel", "", "", "cross_entropy clip_coeff rng_seeds vocab_ranges"},
    {"tensor_parallel.clip_coeff", "total_norm max_norm", "coeff applied", ""},
    {"tensor_parallel.cross_entropy", "seq batch vocab label_smoothing logits target grad_output", "loss grad_logits",
     ""},
    {"tensor_parallel.rng_seeds", "arg_seed tp_rank pp_rank ep_rank etp_rank",
     "base_seed_after_pp default_data_parallel_seed model_parallel_seed expert_parallel_seed", ""},
    {"tensor_parallel.vocab_ranges", "global_vocab tp", "ranges", ""},
};

const Form* find_form(const std::string& path) {
  const auto* found =
      std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& form) { return path == form.path; });
  return found == std::end(kForms) ? nullptr : found;
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Comments on a case that affect nothing, and the full length of truncated lists.
constexpr const char* kCommonKeys = "source note notes terms name comment length";

bool fits(const std::string& key, const std::string& word) {
  return word == key || (word.back() == '*' && key.compare(0, word.size() - 1, word, 0, word.size() - 1) == 0);
}

bool names(const std::string& list, const std::string& key) {
  const auto all = split_words(list);
  return std::any_of(all.begin(), all.end(), [&](const std::string& word) { return fits(key, word); });
}

bool has(const Json& json, const std::string& word) {
  if (word.back() != '*') return json.contains(word);
  for (const auto& [key, value] : json.items()) {
    if (fits(key, word)) return true;
  }
  return false;
}

// "" if `json` and all of its contents have the form of `path`, else the missing or unknown key.
std::string find_problem(const std::string& path, const Json& json) {
  const Form* form = find_form(path);
  if (form == nullptr || !json.is_object()) return "";
  const std::string in = " in " + path;
  for (const std::string& key : split_words(form->given)) {
    if (!has(json, key)) return "the key " + key + " is missing" + in;
  }
  for (const std::string& key : split_words(form->result)) {
    if (!has(json, key) && !is_refusal(json)) return "the key " + key + " is missing" + in;
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = names(form->given, key) || names(form->result, key) || names(form->optional, key) ||
                       names(kCommonKeys, key) || is_refusal_key(key);
    if (!known) return "the key " + key + " is unknown" + in;
    const std::string inside = path + "." + key;
    if (find_form(inside) == nullptr) continue;
    if (!value.is_array()) {
      if (const std::string problem = find_problem(inside, value); !problem.empty()) return problem;
      continue;
    }
    for (const Json& part : value) {
      if (const std::string problem = find_problem(inside, part); !problem.empty()) return problem;
    }
  }
  return "";
}

Json with_nulls(const std::string& path, Json json) {
  const Form* form = find_form(path);
  if (form != nullptr && json.is_object() && is_refusal(json)) {
    for (const std::string& key : split_words(form->result)) {
      if (!has(json, key)) json[key] = nullptr;
    }
  }
  return json;
}

std::string case_label(const Json& json, size_t index) {
  const bool named = json.is_object() && json.contains("name") && json.at("name").is_string();
  return "[" + std::to_string(index) + "]" + (named ? " " + json.at("name").get<std::string>() : "");
}

// The cases of a list, or of the lists in an object that is no case itself ("rng", "num_samples").
Json all_cases(const std::string& path, const Json& value, Report& report) {
  if (value.is_array()) {
    Json kept = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string problem = find_problem(path, value[i]);
      if (problem.empty()) kept.push_back(with_nulls(path, value[i]));
      else report.failures.push_back(path + case_label(value[i], i) + ": " + problem);
    }
    return kept;
  }
  if (!value.is_object() || find_form(path) == nullptr) return value;
  const Form& form = *find_form(path);
  const bool holds_lists = *form.given == '\0' && *form.result == '\0';
  if (!holds_lists) {
    const std::string problem = value.empty() ? "" : find_problem(path, value);
    if (problem.empty()) return value;
    report.failures.push_back(path + ": " + problem);
    return Json::object();
  }
  Json kept = Json::object();
  for (const auto& [key, inside] : value.items()) {
    if (names(form.optional, key) || names(kCommonKeys, key)) kept[key] = all_cases(path + "." + key, inside, report);
    else report.failures.push_back(path + ": the key " + key + " is unknown");
  }
  return kept;
}

}  // namespace

Json well_formed(const std::string& stem, const Json& file, Report& report) { return all_cases(stem, file, report); }

}  // namespace metroplex::conformance
