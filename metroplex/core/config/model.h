// Model architecture. Names are Megatron's (TransformerConfig). 0 means "derived", see validate.h.
#pragma once

#include <cstdint>
#include <string>

#include "config/choice.h"

namespace metroplex::config {

enum class PositionEmbedding { learned_absolute, rope, none };
template <>
inline constexpr Word<PositionEmbedding> kWords<PositionEmbedding>[] = {
    {PositionEmbedding::learned_absolute, "learned_absolute"},
    {PositionEmbedding::rope, "rope"},
    {PositionEmbedding::none, "none"}};

enum class RopeType { automatic, rope, yarn, longrope };
template <>
inline constexpr Word<RopeType> kWords<RopeType>[] = {{RopeType::automatic, "auto"},
                                                      {RopeType::rope, "rope"},
                                                      {RopeType::yarn, "yarn"},
                                                      {RopeType::longrope, "longrope"}};

enum class AttentionVariant { none, gated_delta_net, lightning_attention };
template <>
inline constexpr Word<AttentionVariant> kWords<AttentionVariant>[] = {
    {AttentionVariant::none, "none"},
    {AttentionVariant::gated_delta_net, "gated_delta_net"},
    {AttentionVariant::lightning_attention, "lightning_attention"}};

enum class SoftmaxType { vanilla, off_by_one, learnable };
template <>
inline constexpr Word<SoftmaxType> kWords<SoftmaxType>[] = {{SoftmaxType::vanilla, "vanilla"},
                                                            {SoftmaxType::off_by_one, "off-by-one"},
                                                            {SoftmaxType::learnable, "learnable"}};

enum class Normalization { LayerNorm, RMSNorm };
template <>
inline constexpr Word<Normalization> kWords<Normalization>[] = {{Normalization::LayerNorm, "LayerNorm"},
                                                                {Normalization::RMSNorm, "RMSNorm"}};

enum class Activation { gelu, gelu_tanh, quick_gelu, silu, relu, squared_relu };
template <>
inline constexpr Word<Activation> kWords<Activation>[] = {
    {Activation::gelu, "gelu"}, {Activation::gelu_tanh, "gelu_tanh"}, {Activation::quick_gelu, "quick_gelu"},
    {Activation::silu, "silu"}, {Activation::relu, "relu"},           {Activation::squared_relu, "squared_relu"}};

enum class ScoreFunction { softmax, sigmoid, sqrtsoftplus };
template <>
inline constexpr Word<ScoreFunction> kWords<ScoreFunction>[] = {{ScoreFunction::softmax, "softmax"},
                                                                {ScoreFunction::sigmoid, "sigmoid"},
                                                                {ScoreFunction::sqrtsoftplus, "sqrtsoftplus"}};

enum class RouterDtype { automatic, fp32, fp64 };
template <>
inline constexpr Word<RouterDtype> kWords<RouterDtype>[] = {
    {RouterDtype::automatic, "auto"}, {RouterDtype::fp32, "fp32"}, {RouterDtype::fp64, "fp64"}};

// For sigmoid and sqrtsoftplus: whether the scores of the selected experts are divided by their sum.
enum class TopkNormalization { automatic, always, never };
template <>
inline constexpr Word<TopkNormalization> kWords<TopkNormalization>[] = {{TopkNormalization::automatic, "auto"},
                                                                        {TopkNormalization::always, "always"},
                                                                        {TopkNormalization::never, "never"}};

enum class DropPolicy { probs, position };
template <>
inline constexpr Word<DropPolicy> kWords<DropPolicy>[] = {{DropPolicy::probs, "probs"},
                                                          {DropPolicy::position, "position"}};

enum class TokenDispatcher { automatic, local, allgather, alltoall, hierarchical, static_buffer };
template <>
inline constexpr Word<TokenDispatcher> kWords<TokenDispatcher>[] = {
    {TokenDispatcher::automatic, "auto"},
    {TokenDispatcher::local, "local"},
    {TokenDispatcher::allgather, "allgather"},
    {TokenDispatcher::alltoall, "alltoall"},
    {TokenDispatcher::hierarchical, "hierarchical"},
    {TokenDispatcher::static_buffer, "static_buffer"}};

// Reaction of a step to more rows for a rank than its static buffer can hold.
enum class OverflowPolicy { redo, drop, stop };
template <>
inline constexpr Word<OverflowPolicy> kWords<OverflowPolicy>[] = {
    {OverflowPolicy::redo, "redo"}, {OverflowPolicy::drop, "drop"}, {OverflowPolicy::stop, "stop"}};

// Number format of rows between ranks. mxfp8: E4M3 codes, 32 of which share a power of two.
enum class RowDtype { params, mxfp8 };
template <>
inline constexpr Word<RowDtype> kWords<RowDtype>[] = {{RowDtype::params, "params"}, {RowDtype::mxfp8, "mxfp8"}};

// Planner that assigns expert replicas to ranks (plan/echo.h).
enum class EchoPlanner { greedy, binpack, capfill, exact };
template <>
inline constexpr Word<EchoPlanner> kWords<EchoPlanner>[] = {{EchoPlanner::greedy, "greedy"},
                                                            {EchoPlanner::binpack, "binpack"},
                                                            {EchoPlanner::capfill, "capfill"},
                                                            {EchoPlanner::exact, "exact"}};

// Division of a replica's rows over the source ranks (plan/echo_split.cpp).
enum class EchoSplit { automatic, local_first, breadth_then_depth };
template <>
inline constexpr Word<EchoSplit> kWords<EchoSplit>[] = {{EchoSplit::automatic, "auto"},
                                                        {EchoSplit::local_first, "local_first"},
                                                        {EchoSplit::breadth_then_depth, "breadth_then_depth"}};

struct Model {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/model_keys.inc"
#include "config/moe_keys.inc"
#undef KEY

  bool tied() const { return !untie_embeddings_and_output_weights; }
  bool has_experts() const { return num_moe_experts > 0; }
  bool yarn() const {
    return rope_type == RopeType::yarn || (rope_type == RopeType::automatic && multi_latent_attention);
  }
  bool longrope() const { return rope_type == RopeType::longrope; }
  // Layers of model.linear_attention_freq have the variant. hybrid_layer_pattern may name others.
  bool has_linear_attention() const { return experimental_attention_variant != AttentionVariant::none; }
  bool has_delta_net() const { return has_variant(AttentionVariant::gated_delta_net, 'G'); }
  bool has_lightning() const { return has_variant(AttentionVariant::lightning_attention, 'L'); }
  bool has_window() const { return window_size >= 0; }
  bool has_local_attention() const { return has_window() || attention_chunk_size > 0; }
  bool output_bias() const { return add_bias_linear || add_attention_output_bias; }
  bool mlp_bias() const { return add_bias_linear || add_mlp_bias; }
  // Whether output projections add their biases themselves, because the complete sum is normalized or scaled.
  bool needs_whole_sum() const {
    return sandwich_norm || parallel_attention_mlp || residual_multiplier != 1 || residual_multiplier_linear > 0 ||
           residual_multiplier_mlp > 0;
  }
  bool has_capacity() const { return moe_expert_capacity_factor > 0; }

 private:
  bool has_variant(AttentionVariant variant, char symbol) const {
    return experimental_attention_variant == variant || hybrid_layer_pattern.find(symbol) != std::string::npos;
  }
};

}  // namespace metroplex::config
