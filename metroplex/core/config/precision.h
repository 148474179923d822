// Number formats, loss scale, and checks of losses and gradients. fp64 is a full training dtype; tests compare
// layouts in it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

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

enum class Fp4Format { none, e2m1 };
template <>
inline constexpr Word<Fp4Format> kWords<Fp4Format>[] = {{Fp4Format::none, "none"}, {Fp4Format::e2m1, "e2m1"}};

enum class Fp8Products { widened, library };
template <>
inline constexpr Word<Fp8Products> kWords<Fp8Products>[] = {{Fp8Products::widened, "widened"},
                                                            {Fp8Products::library, "library"}};

// The rounding of a layer's operands: fp8_recipe, NVFP4 (fp4_format), or none.
enum class Recipe { none, delayed, tensorwise, blockwise, mxfp8, nvfp4 };
template <>
inline constexpr Word<Recipe> kWords<Recipe>[] = {
    {Recipe::none, "none"},           {Recipe::delayed, "delayed"}, {Recipe::tensorwise, "tensorwise"},
    {Recipe::blockwise, "blockwise"}, {Recipe::mxfp8, "mxfp8"},     {Recipe::nvfp4, "nvfp4"}};
// Values of a block along a sum; 0: blocks are whole tensors.
int64_t operand_block(Recipe recipe);
// Whether a matrix has one factor and no blocks.
bool has_one_factor(Recipe recipe);
// Whether ranks can encode their shards of a weight, whose codes serve both of its products.
bool gathers_codes(Recipe recipe);
// Whether an operand has a factor for the whole tensor.
bool has_tensor_factor(Recipe recipe);
// "precision.fp8_recipe = mxfp8"
std::string to_setting(Recipe recipe);

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
  // The recipe of layers that no entry of recipe_pattern matches.
  Recipe recipe() const;
  // All recipes other than none that layers of the model may have.
  std::vector<Recipe> recipes() const;
  bool rounds_operands() const { return !recipes().empty(); }
  bool has_recipe(Recipe recipe) const;
  bool delays_scales() const { return has_recipe(Recipe::delayed); }
  bool has_tensor_factors() const;
  // The recipe of the layer <module>: decoder.layers.0.mlp.linear_fc1.
  Recipe find_recipe(const std::string& module) const;
  Precision without_rounding() const;
  // Without low precision in layers that first_last_layers_bf16 excludes.
  Precision of_layer(int64_t layer, int64_t num_layers) const;
  bool scales_dynamically() const { return params_dtype == ParamsDtype::fp16 && loss_scale == 0; }
};

}  // namespace metroplex::config
