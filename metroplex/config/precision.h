// Number formats, the loss scale, and what is checked of losses and gradients. "fp64" is a real training dtype:
// layouts are compared in it.
#pragma once

#include <cstdint>
#include <limits>

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

// Its keys, each with type, default and help: precision_keys.inc.
struct Precision {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/precision_keys.inc"
#undef KEY

  bool half() const { return params_dtype == ParamsDtype::bf16 || params_dtype == ParamsDtype::fp16; }
  bool scales_loss() const { return params_dtype == ParamsDtype::fp16 || loss_scale > 0; }
  bool scales_dynamically() const { return params_dtype == ParamsDtype::fp16 && loss_scale == 0; }
};

}  // namespace metroplex::config
