// What the keys of section model about mixtures of experts (moe_keys.inc) come to: which layers, which losses, how
// many rows. The functions that throw do so as base::Error("config") with key, value, rule and way out; the rules
// (rules_experts.cpp) ask those that name a problem instead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace metroplex::config {

// Of each layer, whether it has experts: model.moe_layer_freq; none has where model.num_moe_experts is 0. Throws.
std::vector<bool> moe_layers(const Model& model);
// The numbers of the layers that have experts, from 0; those of multi-token prediction come behind the others.
std::vector<int64_t> expert_layers(const Model& model);
// Of each layer, whether it has a window: model.window_attn_skip_freq; none has where there is no window_size.
// Throws.
std::vector<bool> window_layers(const Model& model);
// Nothing when `text` cannot be read or its pattern has not num_layers entries; `problem` says why.
std::optional<std::vector<bool>> read_moe_layers(const std::string& text, int64_t num_layers, std::string& problem);
// The same of model.window_attn_skip_freq.
std::optional<std::vector<bool>> read_window_layers(const std::string& text, int64_t num_layers,
                                                    std::string& problem);

// Whether no layer is dense; false where the pattern cannot be read, and of a family with a dense block behind the
// last layer.
bool all_layers_have_experts(const Model& model);

// A loss that pushes the router towards even load: over the tokens of a microbatch, of each sequence, or of the
// microbatches of the global batch so far.
enum class AuxLossType { aux_loss, seq_aux_loss, global_aux_loss };
template <>
inline constexpr Word<AuxLossType> kWords<AuxLossType>[] = {{AuxLossType::aux_loss, "aux_loss"},
                                                            {AuxLossType::seq_aux_loss, "seq_aux_loss"},
                                                            {AuxLossType::global_aux_loss, "global_aux_loss"}};
struct AuxLoss {
  AuxLossType type;
  double coeff;  // above 0
};

// Those of model.moe_router_load_balancing_type whose coefficient (model.moe_aux_loss_coeff) is not 0, in the order
// of the key. Throws.
std::vector<AuxLoss> aux_losses(const Model& model);
// Whether the choice of experts is balanced by Sinkhorn's algorithm.
bool sinkhorn(const Model& model);

// What stands between commas, without spaces around; one empty word of an empty text.
std::vector<std::string> comma_list(const std::string& text);
// Nothing when a word is no number of at least 0; `problem` says which.
std::optional<std::vector<double>> read_coefficients(const std::string& text, std::string& problem);

// model.moe_ffn_hidden_size, or that of a dense layer.
int64_t expert_ffn_width(const Model& model);
// Of `tokens` of a rank each expert takes at most ceil(tokens * topk / experts * factor), and no more than there are:
// a token goes to an expert once. Requires: model.has_capacity().
int64_t expert_capacity(const Model& model, int64_t tokens);
// Every expert gets its capacity's rows from every rank, whatever was routed.
bool pads_to_capacity(const Model& model);
// Of the dispatcher static_buffer, with `tokens` on each of the etp * ep ranks: rows that a rank has room for, and
// that one rank sends to another at most. No more than can come.
int64_t rank_capacity(const Model& model, int64_t tokens, int64_t etp, int64_t ep);
int64_t rank_pair_capacity(const Model& model, int64_t tokens, int64_t ep);
// Of that dispatcher: the rows of a rank when experts are loaded evenly.
int64_t even_rows(const Model& model, int64_t tokens, int64_t etp);
// Whether a key of section model is moe_paged_stash or for it alone.
bool is_stash_key(std::string_view name);
// Slots for clones on each rank of ep.
int64_t echo_slots(const Model& model, int64_t ep);
// Whether a key of section model is moe_enable_echo or for it alone.
bool is_echo_key(std::string_view name);
// Sets all keys of clones and of the stash to their defaults, for what can do without: another number of ranks, a run
// that evaluates.
void turn_echo_and_stash_off(Model& model);
// Of model.moe_enable_echo. How far from the mean the largest load may be for a plan of fewer clones, in 1/10000.
int64_t echo_eps_basis_points(const Model& model);
// model.moe_echo_split with auto replaced.
EchoSplit echo_split(const Model& model);
// Whether plans can be made on a GPU.
bool echo_plans_on_device(const Model& model);
// model.moe_token_dispatcher_type; where it is auto, local for one rank, else alltoall. expert_ranks: those that
// share a layer's experts, etp * ep.
TokenDispatcher token_dispatcher(const Model& model, int64_t expert_ranks);
// Whether that one has the host read, in every step, how many rows go to each rank: what is as long as its messages.
bool dispatcher_reads_counts(const Model& model, int64_t expert_ranks);

}  // namespace metroplex::config
