// Number formats, loss scale, and checks of losses and gradients. fp64 is a full training dtype; tests compare
// layouts in it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "config/choice.h"

namespace metroplex::config {

enum class ParamsDtype { fp32, fp64, bf16, fp16 };
template <>
inline constexpr Word<ParamsDtype> kWords<ParamsDtype>[] = {{ParamsDtype::fp32, "fp32"},
                                                            {ParamsDtype::fp64, "fp64"},
                                                            {ParamsDtype::bf16, "bf16"},
                                                            {ParamsDtype::fp16, "fp16"}};

enum class MainGradsDtype { automatic, fp32, params };
template <>
inline constexpr Word<MainGradsDtype> kWords<MainGradsDtype>[] = {
    {MainGradsDtype::automatic, "auto"}, {MainGradsDtype::fp32, "fp32"}, {MainGradsDtype::params, "params"}};

enum class Fp8Format { none, e4m3, hybrid };
template <>
inline constexpr Word<Fp8Format> kWords<Fp8Format>[] = {
    {Fp8Format::none, "none"}, {Fp8Format::e4m3, "e4m3"}, {Fp8Format::hybrid, "hybrid"}};

enum class Fp8Recipe { delayed, tensorwise, blockwise, mxfp8 };
template <>
inline constexpr Word<Fp8Recipe> kWords<Fp8Recipe>[] = {{Fp8Recipe::delayed, "delayed"},
                                                        {Fp8Recipe::tensorwise, "tensorwise"},
                                                        {Fp8Recipe::blockwise, "blockwise"},
                                                        {Fp8Recipe::mxfp8, "mxfp8"}};

enum class AmaxComputeAlgo { most_recent, max };
template <>
inline constexpr Word<AmaxComputeAlgo> kWords<AmaxComputeAlgo>[] = {{AmaxComputeAlgo::most_recent, "most_recent"},
                                                                    {AmaxComputeAlgo::max, "max"}};

enum class OutputLogitDtype { params, fp32 };
template <>
inline constexpr Word<OutputLogitDtype> kWords<OutputLogitDtype>[] = {{OutputLogitDtype::params, "params"},
                                                                      {OutputLogitDtype::fp32, "fp32"}};

inline bool is_half(ParamsDtype dtype) { return dtype == ParamsDtype::bf16 || dtype == ParamsDtype::fp16; }

// Suffix of the names of tensors that store the magnitudes of delayed scales.
inline constexpr const char* kOperandHistory = ".operand_magnitudes";
inline bool is_operand_history(std::string_view name) { return name.ends_with(kOperandHistory); }

struct Precision {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/precision_keys.inc"
#undef KEY

  bool half() const { return is_half(params_dtype); }
  bool scales_loss() const { return params_dtype == ParamsDtype::fp16 || loss_scale > 0; }
  bool rounds_operands() const { return fp8_format != Fp8Format::none; }
  bool delays_scales() const { return rounds_operands() && fp8_recipe == Fp8Recipe::delayed; }
  // Whether an operand has one factor for the whole tensor.
  bool has_tensor_factors() const {
    return delays_scales() || (rounds_operands() && fp8_recipe == Fp8Recipe::tensorwise);
  }
  // Values of a block along a sum; 0: blocks are whole tensors.
  int64_t operand_block() const;
  std::string recipe_text() const;  // "precision.fp8_recipe = mxfp8"
  // The formats of a layer: without low precision in layers that first_last_layers_bf16 excludes.
  Precision of_layer(int64_t layer, int64_t num_layers) const;
  bool scales_dynamically() const { return params_dtype == ParamsDtype::fp16 && loss_scale == 0; }
};

}  // namespace metroplex::config
