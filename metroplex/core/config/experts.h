// Interprets the MoE keys of section model (moe_keys.inc): MoE layers, losses, numbers of rows. Functions marked
// "Throws" throw base::Error("config") with key, value, rule and suggested fix. The rules (rules_experts.cpp) call
// the variants with `problem`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// Returns, per layer, whether it is an MoE layer (model.moe_layer_freq or model.hybrid_layer_pattern); false for all
// if model.num_moe_experts is 0. Throws.
std::vector<bool> moe_layers(const Model& model);
// Returns the indices of MoE layers, from 0. Multi-token prediction layers follow the others.
std::vector<int64_t> expert_layers(const Model& model);
// Returns, per layer, whether it has a window or chunks (model.window_attn_skip_freq); false for all without them.
// Throws.
std::vector<bool> window_layers(const Model& model);
// Returns, per layer, whether it has linear attention (model.linear_attention_freq); false for all without
// model.experimental_attention_variant. Throws.
std::vector<bool> linear_attention_layers(const Model& model);
// Returns, per layer, whether it has rotary positions (model.no_rope_freq). Throws.
std::vector<bool> rope_layers(const Model& model);
// Returns nothing and sets `problem` if `text` is invalid or does not give num_layers entries.
std::optional<std::vector<bool>> read_moe_layers(const std::string& text, int64_t num_layers, std::string& problem);
// The same for model.window_attn_skip_freq and model.linear_attention_freq.
std::optional<std::vector<bool>> read_window_layers(const std::string& text, int64_t num_layers,
                                                    std::string& problem);
// The same for model.no_rope_freq.
std::optional<std::vector<bool>> read_rope_layers(const std::string& text, int64_t num_layers, std::string& problem);

// Router load balancing loss over the tokens of a microbatch, of each sequence, or of the global batch so far.
enum class AuxLossType { aux_loss, seq_aux_loss, global_aux_loss };
template <>
inline constexpr Word<AuxLossType> kWords<AuxLossType>[] = {{AuxLossType::aux_loss, "aux_loss"},
                                                            {AuxLossType::seq_aux_loss, "seq_aux_loss"},
                                                            {AuxLossType::global_aux_loss, "global_aux_loss"}};
struct AuxLoss {
  AuxLossType type;
  double coeff;  // > 0
};

// Returns the losses of model.moe_router_load_balancing_type with a nonzero coefficient (model.moe_aux_loss_coeff),
// in key order. Throws.
std::vector<AuxLoss> aux_losses(const Model& model);
bool sinkhorn(const Model& model);

// Splits at commas and trims blanks. Empty text gives one empty word.
std::vector<std::string> comma_list(const std::string& text);
// Returns nothing and sets `problem` if a word is not a number >= 0.
std::optional<std::vector<double>> read_coefficients(const std::string& text, std::string& problem);

// Returns the numbers of model.longrope_short_factor or model.longrope_long_factor. Throws.
std::vector<double> longrope_factors(const std::string& text);

// Returns model.moe_ffn_hidden_size, or the width of a dense layer.
int64_t expert_ffn_width(const Model& model);
// Returns the width of the rows of routed experts: model.moe_latent_size, or hidden_size.
int64_t expert_row_width(const Model& model);
// Returns the maximum rows per expert from a rank's `tokens`: ceil(tokens * topk / experts * factor), at most
// `tokens`, because a token goes to an expert once. Requires model.has_capacity().
int64_t expert_capacity(const Model& model, int64_t tokens);
// True if every expert receives exactly its capacity of rows from every rank.
bool pads_to_capacity(const Model& model);
// Dispatcher static_buffer with `tokens` on each of the etp * ep ranks: the row capacity of a rank, and the maximum
// rows from one rank to another. Neither exceeds the number of rows that can occur.
int64_t rank_capacity(const Model& model, int64_t tokens, int64_t etp, int64_t ep);
int64_t rank_pair_capacity(const Model& model, int64_t tokens, int64_t ep);
// The same dispatcher: rows per rank under even load.
int64_t even_rows(const Model& model, int64_t tokens, int64_t etp);
// True if a key of section model is moe_paged_stash or only applies to it.
bool is_stash_key(std::string_view name);
int64_t echo_slots(const Model& model, int64_t ep);
// True if a key of section model is moe_enable_echo or only applies to it.
bool is_echo_key(std::string_view name);
// Resets all ECHO and paged stash keys to their defaults, for uses that do not need them: another number of ranks, or
// evaluation.
void turn_echo_and_stash_off(Model& model);
// For model.moe_enable_echo: the tolerated excess of the maximum load over the mean, in 1/10000, in exchange for
// fewer replicas.
int64_t echo_eps_basis_points(const Model& model);
EchoSplit echo_split(const Model& model);
bool echo_plans_on_device(const Model& model);
// Resolves model.moe_token_dispatcher_type: auto is local for one rank, else alltoall. expert_ranks is etp * ep, the
// ranks that share a layer's experts.
TokenDispatcher token_dispatcher(const Model& model, int64_t expert_ranks);
// Fraction of a rank's expert buffer that holds rows under even load: below 1 if the dispatcher's buffers have a
// fixed or the largest possible size.
double expert_fill(const Model& model, int64_t etp, int64_t ep);
// True if that dispatcher reads the row counts per rank on the host in every step, because they set its message
// lengths.
bool dispatcher_reads_counts(const Model& model, int64_t expert_ranks);

}  // namespace metroplex::config
