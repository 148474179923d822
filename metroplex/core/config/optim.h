// Optimizer and schedules of learning rate and weight decay. Lengths are either all in iterations or all in samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

enum class LrDecay { constant, linear, cosine, inverse_square_root, WSD };
template <>
inline constexpr Word<LrDecay> kWords<LrDecay>[] = {{LrDecay::constant, "constant"},
                                                    {LrDecay::linear, "linear"},
                                                    {LrDecay::cosine, "cosine"},
                                                    {LrDecay::inverse_square_root, "inverse-square-root"},
                                                    {LrDecay::WSD, "WSD"}};

enum class WsdDecay { linear, cosine, exponential, minus_sqrt };
template <>
inline constexpr Word<WsdDecay> kWords<WsdDecay>[] = {{WsdDecay::linear, "linear"},
                                                      {WsdDecay::cosine, "cosine"},
                                                      {WsdDecay::exponential, "exponential"},
                                                      {WsdDecay::minus_sqrt, "minus_sqrt"}};

enum class WeightDecayIncr { constant, linear, cosine };
template <>
inline constexpr Word<WeightDecayIncr> kWords<WeightDecayIncr>[] = {{WeightDecayIncr::constant, "constant"},
                                                                    {WeightDecayIncr::linear, "linear"},
                                                                    {WeightDecayIncr::cosine, "cosine"}};

enum class MuonScale { spectral, unit_rms_norm, shape_scaling };
template <>
inline constexpr Word<MuonScale> kWords<MuonScale>[] = {{MuonScale::spectral, "spectral"},
                                                        {MuonScale::unit_rms_norm, "unit_rms_norm"},
                                                        {MuonScale::shape_scaling, "shape_scaling"}};

// Coefficients of Muon's Newton-Schulz iteration (optim/muon.h).
enum class MuonCoefficients { quintic, simple };
template <>
inline constexpr Word<MuonCoefficients> kWords<MuonCoefficients>[] = {{MuonCoefficients::quintic, "quintic"},
                                                                      {MuonCoefficients::simple, "simple"}};

enum class MainParamsDtype { fp32, bf16 };
template <>
inline constexpr Word<MainParamsDtype> kWords<MainParamsDtype>[] = {{MainParamsDtype::fp32, "fp32"},
                                                                    {MainParamsDtype::bf16, "bf16"}};

enum class MomentDtype { fp32, bf16, eight_bit };
template <>
inline constexpr Word<MomentDtype> kWords<MomentDtype>[] = {
    {MomentDtype::fp32, "fp32"}, {MomentDtype::bf16, "bf16"}, {MomentDtype::eight_bit, "8bit"}};

struct Optim {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/optim_keys.inc"
#undef KEY
};

// optim.param_groups: learning rate and weight decay by global parameter name. A rule has the form "PATTERN lr_mult=X
// wd_mult=Y start_wd=A end_wd=B". The first matching rule applies.

struct ParamGroupRule {
  std::string pattern;                         // * matches any text, ? any one character; must match the full name
  double lr_mult = 1.0;                        // factor of the default learning rate
  std::optional<double> wd_mult{};             // factor of weight decay for any parameter; unset: 0 or 1 by kind
  std::optional<double> start_wd{}, end_wd{};  // unset: optim.start_weight_decay, end_weight_decay

  bool match(const std::string& name) const;
};

// Returns nothing and sets `problem` if `text` is not a rule.
std::optional<ParamGroupRule> read_param_group(const std::string& text, std::string& problem);

// Returns all of optim.param_groups, in order. Throws base::Error("config") for an invalid rule.
std::vector<ParamGroupRule> param_group_rules(const Optim& optim);

// Returns the first rule that matches `name`, or null.
const ParamGroupRule* find_param_group(const std::vector<ParamGroupRule>& rules, const std::string& name);

}  // namespace metroplex::config
